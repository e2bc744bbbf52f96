// The engine on a CudaDevice, on a fake CUDA runtime whose streams run in an order that a seed chooses.
#include "fake_cuda/fake_cuda.hpp"
#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <string>
#include <utility>

namespace penstock::zero::test {
namespace {

namespace fake_cuda = penstock::test::fake_cuda;
using enum OffloadDevice;

struct Offload {
  OffloadDevice parameters, optimizer;
};

/// Trainings on threads whose result the number of ranks decides.
RunOptions run_options(std::uint32_t ranks, Offload offload) {
  RunOptions options{.ranks = ranks, .steps = 2, .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = offload.parameters;
  options.config.offload_optimizer.device = offload.optimizer;
  return options;
}

TestAccelerator cuda() {
  return {.make = [](ByteCount) { return make_cuda_accelerator(0); },
          .enqueue =
              [](StreamHandle stream, std::function<void()> operation) {
                EXPECT_EQ(
                    fake_cuda::enqueue(static_cast<cudaStream_t>(stream.native()), std::move(operation)),
                    cudaSuccess);
              },
          .bytes =
              [](DeviceSpan span) {
                const auto* const address = reinterpret_cast<const void*>(span.address());
                return HostSpan(fake_cuda::bytes(address, span.size().value()), span.size());
              }};
}

class EngineOnCuda : public testing::Test {
 protected:
  void TearDown() override { fake_cuda::restart(); }
};
class EngineOnCudaRanks : public EngineOnCuda, public testing::WithParamInterface<std::uint32_t> {};

TEST_P(EngineOnCudaRanks, GivesTheBitsOfAHostDeviceInEveryOrderOfTheStreams) {
  const std::uint32_t ranks = GetParam();
  const RunResult host = train(run_options(ranks, {none, none}));
  ASSERT_FALSE(host.error) << host.error->message();
  std::uint64_t seed = 0;
  for (const Offload offload : {Offload{none, none}, {nvme, none}, {none, nvme}, {nvme, nvme}}) {
    for (int order = 0; order < 5; ++order) {
      SCOPED_TRACE("seed " + std::to_string(++seed));
      fake_cuda::restart({.seed = seed});
      RunOptions options = run_options(ranks, offload);
      options.accelerator = cuda();

      const RunResult result = train(options);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, host.digest);
      EXPECT_EQ(result.parameters, host.parameters);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
      EXPECT_EQ(fake_cuda::live(), fake_cuda::Live{});
    }
  }
}

TEST_P(EngineOnCudaRanks, ReusesMemoryInEveryOrderOfTheStreams) {
  RunOptions options = run_options(GetParam(), {none, none});
  options.model = deep_model();
  options.config.grad_accum_dtype = DType::fp32;  // more than fits: gradients are on disk too
  const RunResult host = train(options);
  ASSERT_FALSE(host.error) << host.error->message();
  options.config.offload_param.device = options.config.offload_optimizer.device = nvme;
  // Memory is used again as soon as a stream has read it.
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.accelerator = cuda();
  for (std::uint64_t seed = 100; seed < 105; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    fake_cuda::restart({.seed = seed});

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, host.digest);
  }
}

TEST_F(EngineOnCuda, AllocatesOnceAndWaitsForNoDeviceWhileItTrains) {
  RunOptions options = run_options(/*ranks=*/1, {none, none});
  options.steps = 3;
  options.accelerator = cuda();
  fake_cuda::Counts before, after;
  options.before_step = [&](std::uint32_t step, std::uint32_t, swap::Runtime&) {
    (step <= 1 ? before : after) = fake_cuda::count();
    EXPECT_EQ(fake_cuda::live().registrations, 1u) << "copies of pageable memory are not asynchronous";
  };

  ASSERT_FALSE(train(options).error);

  const fake_cuda::Counts step = after - before;
  EXPECT_GT(step.of("cudaMemcpyAsync"), 0u);
  EXPECT_EQ(step.allocations() + step.stream_creations() + step.device_synchronizations(), 0u);
}

// A rank that is alone launches no kernel.
TEST_F(EngineOnCuda, ReportsAKernelThatFaults) {
  for (const std::uint64_t kernel : {1u, 3u}) {
    fake_cuda::restart({.seed = kernel});
    fake_cuda::fail_kernel(kernel);
    RunOptions options = run_options(/*ranks=*/2, {none, none});
    options.accelerator = cuda();

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    EXPECT_NE(result.error->message().find("illegal memory access"), std::string::npos)
        << result.error->message();
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EngineOnCudaRanks, testing::Values(1u, 2u));

}  // namespace
}  // namespace penstock::zero::test
