// Plans of random models, configurations and budgets: the engine does not exceed what they predict.
#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;
using test::RunOptions;

OffloadDevice random_tier(SeededRandom& random) {
  return random.below(3) == 0 ? OffloadDevice::cpu : OffloadDevice::nvme;
}

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed + 3000);
  RunOptions options{.ranks = 1 + static_cast<std::uint32_t>(random.below(2)), .seed = seed};
  options.model = random.below(2) == 0 ? test::deep_model() : test::random_model(random);
  options.micro_batches = 1 + static_cast<std::uint32_t>(random.below(2));
  options.config.offload_optimizer.device = random_tier(random);
  options.config.offload_param.device = random_tier(random);
  if (random.below(2) == 0) options.config.grad_accum_dtype = DType::fp32;
  if (random.below(3) != 0) options.device_memory = tiers::DeviceMemory::separate;
  if (options.device_memory == tiers::DeviceMemory::separate && random.below(3) == 0)
    options.config.cpu_update_ratio = 0.5f;
  if (random.below(2) == 0) {
    const std::uint64_t size = 1 + random.below(random.below(2) == 0 ? 20'000 : 600'000);
    options.model.checkpoints = {.count = static_cast<std::uint32_t>(options.model.units.size()),
                                 .size = ByteCount(size)};
  }
  options.config.penstock.host_budget = test::smallest_host_budget(options);
  if (const std::uint64_t more = random.below(3); more != 0)
    options.config.penstock.host_budget += ByteCount(random.below(more == 1 ? 200'000 : 3'000'000));
  return options;
}

TEST(RandomPlans, AreNotExceeded) {
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    const RunOptions options = random_run(seed);
    const test::RunResult result = train(options);
    const std::string what = "seed " + std::to_string(seed);
    ASSERT_FALSE(result.error) << what << ": " << result.error->message();
    EXPECT_EQ(result.wrong_checkpoints, 0u) << what;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << what;
  }
}

}  // namespace
}  // namespace penstock::zero
