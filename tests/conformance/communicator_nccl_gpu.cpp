// The suite's NCCL transport on GPUs: one rank on each, the first alone and all together. The memory of the ranks is
// managed memory, which the suite reads and writes.
#include "conformance/communicator_conformance.hpp"
#include "kernels/cuda_compute.hpp"
#include "kit/counting_device.hpp"
#include "kit/memory_job.hpp"
#include "tiers/device/cuda_device.hpp"
#include "zero/comm/nccl/nccl_group.hpp"
#include "zero/comm/nccl/nccl_library.hpp"

#include <cuda_runtime_api.h>

namespace penstock::zero::test {
namespace {

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

class ManagedDevice final : public penstock::test::CountingDevice {
 public:
  using CountingDevice::CountingDevice;
  Result<DeviceSpan> allocate(ByteCount size) override {
    void* memory = nullptr;
    if (const cudaError_t error = cudaMallocManaged(&memory, size.value()); error != cudaSuccess)
      return Error(ErrorCode::no_space, "cudaMallocManaged").reason(cudaGetErrorString(error));
    return DeviceSpan(DeviceAddress{reinterpret_cast<std::uintptr_t>(memory)}, size);
  }
  void release(DeviceSpan span) noexcept override {
    (void)cudaFree(reinterpret_cast<void*>(static_cast<std::uintptr_t>(span.address())));
  }
};

constexpr Factory nccl = {
    .name = "Nccl",
    .make_group = [](std::uint32_t ranks, std::uint64_t, const InProcessGroupOptions&) -> Join {
      return [job = std::make_shared<penstock::test::MemoryJob>(ranks)](
                 std::uint32_t rank, tiers::Device& device, Compute& compute) {
        const CollectiveNeeds needs{.exact_slots_max = 4_KiB, .arena = 1_MiB};
        return nccl_membership(job->control(rank), {.leave = std::chrono::seconds(1)})
            .join(device, compute, needs)
            .value();
      };
    },
    .make_device = [](std::uint32_t rank, HostDevice::Mode, std::uint64_t) -> RankDevice {
      const auto ordinal = static_cast<int>(rank);
      return {.device = std::make_unique<ManagedDevice>(tiers::create_cuda_device(ordinal).value()),
              .compute = kernels::make_cuda_compute(ordinal).value(),
              .run_one = [] {
                std::this_thread::yield();
                return true;
              }};
    },
    .enqueue =
        [](tiers::Stream& stream, std::function<void()> operation) {
          const auto run = [](void* owned) {
            const std::unique_ptr<std::function<void()>> one(static_cast<std::function<void()>*>(owned));
            (*one)();
          };
          EXPECT_EQ(cudaLaunchHostFunc(static_cast<cudaStream_t>(stream.handle().native()), run,
                                       new std::function<void()>(std::move(operation))),
                    cudaSuccess);
        },
    .bytes =
        [](DeviceSpan memory) {
          return HostSpan(reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(memory.address())),
                          memory.size());
        },
    .joins_together = true,
    .streams_run_alone = true,
    .wakes = false,
    .joins_slowly = true,
    .why_not = []() -> std::string {
      const auto library = NcclLibrary::instance();
      if (!library) return library.error().message();
      return device_count() == 0 ? "there is no GPU" : "";
    }};

}  // namespace

std::vector<Setting> transport_settings() {
  std::vector<Setting> settings = {{nccl, 1, HostDevice::Mode::eager}};
  // NCCL refuses two ranks on one GPU.
  const auto devices = static_cast<std::uint32_t>(device_count());
  if (devices > 1) settings.push_back({nccl, std::min(devices, 4u), HostDevice::Mode::eager});
  return settings;
}

}  // namespace penstock::zero::test
