#include "zero/comm/nccl/nccl_arena.hpp"

#include "base/cuda/calls.hpp"

#include <string>

namespace penstock::zero {

Result<std::shared_ptr<const DeviceSpan>> allocate_nccl_arena(const NcclLibrary& nccl, int ordinal,
                                                              ByteCount size) {
  PENSTOCK_TRY(use_device("ncclMemAlloc", ordinal));
  void* memory = nullptr;
  if (const ncclResult_t result = nccl.ncclMemAlloc(&memory, size.value()); result != ncclSuccess) {
    return Error(ErrorCode::no_space, "ncclMemAlloc")
        .reason(std::string("NCCL: ") + nccl.ncclGetErrorString(result))
        .object("device " + std::to_string(ordinal))
        .wanted(size)
        .advice(
            "lower penstock.device_budget, or end other programs on the GPU; or set NCCL_DEBUG=WARN, and "
            "read what NCCL prints");
  }
  const DeviceAddress address{reinterpret_cast<std::uintptr_t>(memory)};
  const auto free = [&nccl, ordinal, memory](const DeviceSpan* span) {
    if (use_device("ncclMemFree", ordinal)) (void)nccl.ncclMemFree(memory);
    delete span;
  };
  return std::shared_ptr<const DeviceSpan>(new DeviceSpan(address, size), free);
}

}  // namespace penstock::zero
