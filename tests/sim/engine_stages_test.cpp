// Stages 0 to 3 differ in where parameters are, and in no bit.
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <array>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::SeededRandom;

constexpr std::array offloads = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

/// A random run at stage 3.
RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed);
  RunOptions options{.ranks = static_cast<std::uint32_t>(1 + random.below(4)),
                     .micro_batches = static_cast<std::uint32_t>(1 + random.below(3)),
                     .model = random.below(2) == 0 ? deep_model() : random_model(random),
                     .seed = seed};
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  if (random.below(2) == 0) options.config.grad_accum_dtype = DType::fp32;
  if (random.below(2) == 0) options.config.gradient_clipping = 0.1f;
  return options;
}

TEST(EngineStages, GiveEqualBits) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 24)) {
    RunOptions options = random_run(seed);
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << "seed " << seed << ": " << expected.error->message();
    for (const std::uint32_t stage : {0u, 1u, 2u}) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", stage " + std::to_string(stage));
      options.config.stage = stage;
      options.config.offload_optimizer.device = offloads[(seed + stage) % offloads.size()];
      options.config.overlap_comm = seed % 3 == 0 ? std::nullopt : std::optional(seed % 3 == 1);

      const RunResult result = train(options);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, expected.digest);
      EXPECT_EQ(result.parameters, expected.parameters);
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    }
  }
}

TEST(EngineStages, BelowThreeAddOrAverageTheGradientsOfTheRanks) {
  RunOptions options{.ranks = 2, .micro_batches = 1, .steps = 1, .model = deep_model(), .seed = 3};
  options.config.stage = 1;
  options.config.gradient_clipping = 0;
  const RunResult mean = train(options);
  options.gradient_scale = [](std::uint32_t, std::uint32_t) { return 2.0f; };  // exact
  const RunResult twice = train(options);
  options.gradient_scale = {};
  options.config.gradient_allreduce_op = AllreduceOp::sum;

  const RunResult sum = train(options);

  ASSERT_FALSE(sum.error) << sum.error->message();
  EXPECT_EQ(sum.outcomes[0].gradient_norm, 2 * mean.outcomes[0].gradient_norm);
  EXPECT_EQ(sum.digest, twice.digest);
  EXPECT_NE(sum.digest, mean.digest);
}

}  // namespace
}  // namespace penstock::zero::test
