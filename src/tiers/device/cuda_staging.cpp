#include "tiers/device/cuda_staging.hpp"

#include "base/cuda/calls.hpp"

#include <sys/mman.h>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

namespace penstock::tiers {

namespace {

constexpr const char* operation = "CudaDevice::copy";

/// Host functions of all devices that run now.
std::atomic<int> running{0};

/// A copy between a slot and pageable memory, for cudaLaunchHostFunc.
struct HostCopy {
  std::byte* to;
  const std::byte* from;
  std::size_t size;
};

Result<void> enqueue_host_copy(cudaStream_t stream, std::byte* to, const std::byte* from, ByteCount size) {
  auto copy = std::make_unique<HostCopy>(HostCopy{to, from, size.value()});
  const auto run = [](void* argument) {
    ++running;
    const std::unique_ptr<HostCopy> owned(static_cast<HostCopy*>(argument));
    std::memcpy(owned->to, owned->from, owned->size);
    --running;
  };
  PENSTOCK_TRY(check_cuda(operation, cudaLaunchHostFunc(stream, run, copy.get())));
  (void)copy.release();  // the function deletes it
  return ok();
}

/// False also for an event that cannot be queried.
bool has_passed(cudaEvent_t event) {
  const cudaError_t passed = cudaEventQuery(event);
  ignore_cuda(passed);
  return passed == cudaSuccess;
}

}  // namespace

CudaStaging::~CudaStaging() {
  const bool usable = use_device("CudaDevice::~CudaDevice", device_).has_value();
  for (Ring* const ring : {&in_, &out_}) {
    for (Slot& slot : ring->slots) {
      if (slot.used != nullptr && usable && has_passed(slot.used)) close(slot);
    }
  }
  for (int waited = 0; running > 0 && waited < 1000; ++waited) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

Result<bool> CudaStaging::is_pageable(const void* address) {
  cudaPointerAttributes attributes{};
  PENSTOCK_TRY(check_cuda(operation, cudaPointerGetAttributes(&attributes, address)));
  return attributes.type == cudaMemoryTypeUnregistered;
}

Result<void> CudaStaging::open(Slot& slot) {
  void* const bytes =
      ::mmap(nullptr, slot_bytes.value(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (bytes == MAP_FAILED) return Error::from_errno(operation, errno).wanted(slot_bytes);
  cudaEvent_t used = nullptr;
  Result<void> opened =
      check_cuda(operation, cudaHostRegister(bytes, slot_bytes.value(), cudaHostRegisterPortable));
  if (opened) opened = check_cuda(operation, cudaEventCreateWithFlags(&used, cudaEventDisableTiming));
  slot = {static_cast<std::byte*>(bytes), used};
  if (!opened) close(slot);
  return opened;
}

void CudaStaging::close(Slot& slot) {
  if (slot.used != nullptr) ignore_cuda(cudaEventDestroy(slot.used));
  ignore_cuda(cudaHostUnregister(slot.bytes));
  (void)::munmap(slot.bytes, slot_bytes.value());
  slot = {};
}

/// One that no stream uses any more, else the one used longest ago.
CudaStaging::Slot& CudaStaging::choose(Ring& ring) {
  const std::size_t count = ring.slots.size();
  std::size_t chosen = ring.next;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t candidate = (ring.next + i) % count;
    if (!has_passed(ring.slots[candidate].used)) continue;
    chosen = candidate;
    break;
  }
  ring.next = (chosen + 1) % count;
  return ring.slots[chosen];
}

/// Calls `copy_part(slot, begin, count)`, which enqueues a part, for one slot after the other. A stream waits until the
/// slot's last use is over: that was enqueued before, so that streams never wait for each other in a circle.
template <class Copy>
Result<void> CudaStaging::copy(Ring& ring, cudaStream_t stream, ByteCount size, const Copy& copy_part) {
  const std::lock_guard lock(ring.mutex);
  for (Slot& slot : ring.slots) {  // all before the first part: a copy should not fail in its middle
    if (slot.bytes == nullptr) PENSTOCK_TRY(open(slot));
  }
  for (ByteCount begin; begin < size; begin += slot_bytes) {
    Slot& slot = choose(ring);
    PENSTOCK_TRY(check_cuda(operation, cudaStreamWaitEvent(stream, slot.used, 0)));
    const auto copied = copy_part(slot.bytes, begin.value(), std::min(slot_bytes, size - begin));
    // Also after an error: a part of it may be enqueued.
    const auto recorded = check_cuda(operation, cudaEventRecord(slot.used, stream));
    if (!recorded) slot = {};  // left to the stream: when its last use is over cannot be told
    PENSTOCK_TRY(copied);
    PENSTOCK_TRY(recorded);
  }
  return ok();
}

Result<void> CudaStaging::to_device(cudaStream_t stream, const std::byte* from, std::byte* to,
                                    ByteCount size) {
  return copy(in_, stream, size, [&](std::byte* slot, std::size_t begin, ByteCount count) -> Result<void> {
    PENSTOCK_TRY(enqueue_host_copy(stream, slot, from + begin, count));
    return check_cuda(operation,
                      cudaMemcpyAsync(to + begin, slot, count.value(), cudaMemcpyHostToDevice, stream));
  });
}

Result<void> CudaStaging::to_host(cudaStream_t stream, const std::byte* from, std::byte* to, ByteCount size) {
  return copy(out_, stream, size, [&](std::byte* slot, std::size_t begin, ByteCount count) -> Result<void> {
    PENSTOCK_TRY(check_cuda(
        operation, cudaMemcpyAsync(slot, from + begin, count.value(), cudaMemcpyDeviceToHost, stream)));
    return enqueue_host_copy(stream, to + begin, slot, count);
  });
}

}  // namespace penstock::tiers
