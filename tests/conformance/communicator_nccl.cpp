// The suite's NCCL transport: on the fake NCCL and the fake CUDA runtime, one device a rank.
#include "conformance/communicator_conformance.hpp"
#include "fake_cuda/fake_cuda.hpp"
#include "fake_nccl/fake_nccl.hpp"
#include "kernels/cuda_compute.hpp"
#include "kit/memory_job.hpp"
#include "tiers/device/cuda_device.hpp"
#include "zero/comm/nccl/nccl_group.hpp"

#include <cstdlib>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
namespace fake_nccl = penstock::test::fake_nccl;

constexpr Factory nccl = {
    .name = "Nccl",
    .make_group = [](std::uint32_t ranks, std::uint64_t seed, const InProcessGroupOptions&) -> Join {
      EXPECT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_FAKE_NCCL, /*overwrite=*/1), 0);
      fake_nccl::restart({.seed = seed});
      fake_cuda::restart({.devices = static_cast<int>(ranks), .seed = seed});
      auto job = std::make_shared<penstock::test::MemoryJob>(ranks);
      return [job](std::uint32_t rank, tiers::Device& device, Compute& compute) {
        const CollectiveNeeds needs{.exact_slots_max = 4_KiB};
        return nccl_membership(job->control(rank), {.leave = std::chrono::seconds(1)})
            .join(device, compute, needs)
            .value();
      };
    },
    .make_device = [](std::uint32_t rank, HostDevice::Mode, std::uint64_t) -> RankDevice {
      const auto ordinal = static_cast<int>(rank);
      return {.device = tiers::create_cuda_device(ordinal).value(),
              .compute = kernels::make_cuda_compute(ordinal).value(),
              .run_one = [] {
                std::this_thread::yield();
                return true;
              }};
    },
    .enqueue =
        [](tiers::Stream& stream, std::function<void()> operation) {
          EXPECT_EQ(
              fake_cuda::enqueue(static_cast<cudaStream_t>(stream.handle().native()), std::move(operation)),
              cudaSuccess);
        },
    .bytes =
        [](DeviceSpan memory) {
          const auto* const address = reinterpret_cast<const void*>(memory.address());
          return HostSpan(fake_cuda::bytes(address, memory.size().value()), memory.size());
        },
    .joins_together = true,
    .streams_run_alone = true,
    .wakes = false,
    .check =
        [] {
          EXPECT_EQ(fake_nccl::take_violations(), std::vector<std::string>{});
          EXPECT_EQ(fake_nccl::live(), 0u);
          fake_nccl::restart();
          fake_cuda::restart();
        }};

}  // namespace

std::vector<Setting> transport_settings() {
  return {{nccl, 1, HostDevice::Mode::eager},
          {nccl, 2, HostDevice::Mode::eager},
          {nccl, 3, HostDevice::Mode::eager}};
}

}  // namespace penstock::zero::test
