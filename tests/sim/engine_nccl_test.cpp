// The engine over NCCL: ranks on devices of their own, on the fake NCCL and the fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"
#include "fake_nccl/fake_nccl.hpp"
#include "kit/cluster.hpp"
#include "kit/memory_job.hpp"
#include "zero/comm/nccl/nccl_group.hpp"

#include <gtest/gtest.h>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
namespace fake_nccl = penstock::test::fake_nccl;
using enum OffloadDevice;
using Point = RunOptions::ProgramPoint;

class EngineOnNccl : public testing::TestWithParam<std::uint32_t> {
 protected:
  void SetUp() override { ASSERT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_FAKE_NCCL, /*overwrite=*/1), 0); }
  void TearDown() override {
    fake_nccl::restart();
    fake_cuda::restart();
  }

  static RunOptions run_options(OffloadDevice offload) {
    RunOptions options{.ranks = GetParam(), .steps = 2, .device_memory = tiers::DeviceMemory::separate};
    options.config.offload_param.device = options.config.offload_optimizer.device = offload;
    return options;
  }
  /// Trains with the same options over NCCL; the streams and what NCCL has in progress in an order chosen by `seed`.
  static RunResult train_over_nccl(RunOptions options, std::uint64_t seed) {
    fake_nccl::restart({.seed = seed});
    fake_cuda::restart({.devices = static_cast<int>(options.ranks), .seed = seed});
    options.accelerator = {
        .make = [](std::uint32_t rank, ByteCount) { return make_cuda_accelerator(static_cast<int>(rank)); },
        .enqueue =
            [](StreamHandle stream, std::function<void()> operation) {
              (void)fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()), std::move(operation));
            },
        .bytes =
            [](DeviceSpan span) {
              const auto* const address = reinterpret_cast<const void*>(span.address());
              return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
            }};
    auto job = std::make_shared<penstock::test::MemoryJob>(options.ranks);
    options.membership = [job](std::uint32_t rank) {
      return nccl_membership(job->control(rank), {.device = static_cast<int>(rank), .exact_slot_max = 1_MiB});
    };
    RunResult result = train(options);
    EXPECT_EQ(fake_nccl::take_violations(), std::vector<std::string>{}) << "seed " << seed;
    EXPECT_EQ(fake_nccl::live(), 0u) << "seed " << seed;
    EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{}) << "seed " << seed;
    return result;
  }
};

TEST_P(EngineOnNccl, TrainsToTheBitsOfRanksInOneProcessInEveryOrderOfTheStreams) {
  std::uint64_t seed = 0;
  for (const OffloadDevice offload : {cpu, nvme, none}) {
    const RunResult expected = train(run_options(offload));
    ASSERT_FALSE(expected.error) << expected.error->message();
    for (int order = 0; order < 4; ++order) {
      const RunResult result = train_over_nccl(run_options(offload), ++seed);

      ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
      EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
      EXPECT_EQ(result.parameters, expected.parameters) << "seed " << seed;
    }
  }
  EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), 0u);  // the ranks have left together
}

TEST_P(EngineOnNccl, LeavesNoTraceOfAbandonedSteps) {
  const std::uint32_t last = GetParam() - 1;
  const RunResult expected = train(run_options(cpu));
  for (std::uint64_t seed = 100; seed < 110; ++seed) {
    RunOptions options = run_options(cpu);
    options.trainer_error = [seed, last](const Point& point) -> std::optional<ErrorCode> {
      const auto place = static_cast<Point::Place>(seed % 3);
      const bool here =
          point.rank == last && point.attempt < 2 && point.unit == seed % 2 && point.place == place;
      return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
    };

    const RunResult result = train_over_nccl(options, seed);

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_GT(result.interruptions.size(), 1u);
    EXPECT_EQ(result.digest, expected.digest) << "seed " << seed;
  }
}

TEST_P(EngineOnNccl, EndsAllRanksWithTheCauseWhereOneFails) {
  for (std::uint64_t seed = 200; seed < 203; ++seed) {
    RunOptions options = run_options(cpu);
    options.trainer_error = [](const Point& point) -> std::optional<ErrorCode> {
      const bool here = point.rank == 0 && point.step == 1 && point.place == Point::Place::backward;
      return here ? std::optional(ErrorCode::non_finite) : std::nullopt;
    };

    const RunResult result = train_over_nccl(options, seed);

    ASSERT_TRUE(result.error) << "seed " << seed;
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite)
        << "seed " << seed << ": " << result.error->message();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineOnNccl, testing::Values(2u, 3u), testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock::zero::test
