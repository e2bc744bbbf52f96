// Memory that is parked leaves a CUDA device, on a fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"
#include "kit/cluster.hpp"

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;

TEST(EngineParkOnCuda, FreesTheMemoryAndComesBackWithTheSameBits) {
  RunOptions options{.ranks = 1, .steps = 2, .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::none;
  const RunResult host = train(options);
  ASSERT_FALSE(host.error) << host.error->message();
  options.accelerator = {.make = [](std::uint32_t, ByteCount) { return make_cuda_accelerator(0); },
                         .enqueue =
                             [](StreamHandle stream, std::function<void()> operation) {
                               (void)fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()),
                                                        std::move(operation));
                             },
                         .bytes =
                             [](DeviceSpan span) {
                               const auto* const address = reinterpret_cast<const void*>(span.address());
                               return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
                             }};
  options.without_leases = [](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    if (point.unit != 1 || point.place != RunOptions::ProgramPoint::Place::forward) return ok();
    const auto freed = fake_cuda::count().of("cudaFree");
    PENSTOCK_TRY(engine.park(tiers::Tier::host));
    EXPECT_EQ(fake_cuda::count().of("cudaFree") - freed, 4u);
    PENSTOCK_TRY(engine.unpark());
    return ok();
  };
  for (std::uint64_t seed = 700; seed < 704; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, host.digest);
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
  }
  fake_cuda::restart();
}

}  // namespace
}  // namespace penstock::zero::test
