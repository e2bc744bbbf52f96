#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <memory>

namespace gpt {

/// Device bytes and what keeps them alive. Move it or share it; the bytes go when the last owner does, so an
/// owner outlives the operations enqueued on them.
struct DeviceBuffer {
  penstock::DeviceSpan bytes;
  std::shared_ptr<void> owner;

  /// The whole of it as elements of `dtype`.
  [[nodiscard]] penstock::DeviceTensor as(penstock::DType dtype) const { return {bytes, dtype}; }
};

/// Where the example's activations come from. Used by one thread at a time.
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
