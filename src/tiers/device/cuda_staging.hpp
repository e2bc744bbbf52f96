#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <cuda_runtime_api.h>
#include <array>
#include <cstddef>
#include <mutex>

namespace penstock::tiers {

/// Copies between a device and pageable host memory, through pinned slots: a function that CUDA runs on a thread of its
/// own, in the stream's order, copies between slot and memory. CUDA's own copies of pageable memory may block the
/// caller until the stream gets there, and the caller is the mover.
///
/// Slower than copies of registered memory, because each byte is copied twice. The first copy of a direction allocates
/// its slots. A copy that fails may have been enqueued in part. CUDA may still block the caller of a copy of hundreds
/// of slots, whose parts fill the stream's queue. Safe from any thread.
class CudaStaging {
 public:
  explicit CudaStaging(int device) : device_(device) {}
  CudaStaging(const CudaStaging&) = delete;
  CudaStaging& operator=(const CudaStaging&) = delete;
  /// Slots that a stream may still use are never freed. Waits for host functions that run now: after an error of the
  /// device nothing else does.
  ~CudaStaging();

  /// Whether the address is of host memory that CUDA does not know.
  [[nodiscard]] static Result<bool> is_pageable(const void* address);
  // Stream-ordered, as Device's copies. Errors: those of CUDA.
  Result<void> to_device(cudaStream_t stream, const std::byte* from, std::byte* to, ByteCount size);
  Result<void> to_host(cudaStream_t stream, const std::byte* from, std::byte* to, ByteCount size);

 private:
  static constexpr ByteCount slot_bytes = 4_MiB;
  struct Slot {
    std::byte* bytes = nullptr;
    cudaEvent_t used = nullptr;  // after its last use
  };
  /// The slots of one direction: copies to the device must not wait for copies that wait for kernels.
  struct Ring {
    std::array<Slot, 4> slots;
    std::size_t next = 0;  // the one used longest ago
    std::mutex mutex;
  };

  static Result<void> open(Slot& slot);
  static void close(Slot& slot);
  static Slot& choose(Ring& ring);
  template <class Copy>
  Result<void> copy(Ring& ring, cudaStream_t stream, ByteCount size, const Copy& copy_part);

  const int device_;
  Ring in_, out_;
};

}  // namespace penstock::tiers
