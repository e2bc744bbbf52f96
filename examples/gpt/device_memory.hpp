#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <memory>

namespace gpt {

/// Device bytes and their owner. Can be moved and copied; the bytes are freed with the last owner, so an owner must
/// outlive the operations enqueued on them.
struct DeviceBuffer {
  penstock::DeviceSpan bytes;
  std::shared_ptr<void> owner;

  /// All bytes as elements of `dtype`.
  [[nodiscard]] penstock::DeviceTensor as(penstock::DType dtype) const { return {bytes, dtype}; }
};

/// Allocates the example's activations. Used by one thread at a time.
class DeviceAllocator {
 public:
  DeviceAllocator() = default;
  DeviceAllocator(const DeviceAllocator&) = delete;
  DeviceAllocator& operator=(const DeviceAllocator&) = delete;
  virtual ~DeviceAllocator() = default;

  /// At least `size` bytes aligned to 256, their content unspecified.
  virtual penstock::Result<DeviceBuffer> allocate(penstock::ByteCount size) = 0;
};

/// Ordinary host memory.
class HostAllocator final : public DeviceAllocator {
 public:
  penstock::Result<DeviceBuffer> allocate(penstock::ByteCount size) override;
};

}  // namespace gpt
