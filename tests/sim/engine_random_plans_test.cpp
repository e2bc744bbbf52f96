// Plans of random models, configurations and budgets: the engine does not exceed what they predict.
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <array>
#include <chrono>
#include <string>
#include <utility>
#include <vector>

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
  if (options.device_memory == tiers::DeviceMemory::separate)
    options.config.cpu_update_ratio = std::array{1.0f, 0.5f, 0.0f}[random.below(3)];
  options.config.penstock.tiles_in_flight = static_cast<std::uint32_t>(1 + random.below(4));
  test::keep_random_states(options, seed);
  test::update_in_backward_at_random(options, seed);
  if (random.below(2) == 0) {
    const std::uint64_t size = 1 + random.below(random.below(2) == 0 ? 20'000 : 600'000);
    options.model.checkpoints = {
        .count = static_cast<std::uint32_t>(options.model.units.size()), .size = ByteCount(size), .reads = 2};
  }
  if (random.below(3) == 0)  // slow writes
    options.faults = {{.operation = tiers::IoOperation::write,
                       .count = 1'000'000,
                       .effect = tiers::Fault::Effect::delay,
                       .delay = std::chrono::milliseconds(100)}};
  const std::uint64_t more = random.below(4);
  if (more == 3) return options;  // the plan decides
  options.config.penstock.host_budget = test::smallest_host_budget(options);
  if (more != 0)
    options.config.penstock.host_budget += ByteCount(random.below(more == 1 ? 200'000 : 3'000'000));
  return options;
}

TEST(RandomPlans, AreNotExceeded) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    const RunOptions options = random_run(seed);
    const test::RunResult result = train(options);
    const std::string what = "seed " + std::to_string(seed);
    ASSERT_FALSE(result.error) << what << ": " << result.error->message();
    EXPECT_EQ(result.wrong_checkpoints, 0u) << what;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << what;
  }
}

/// The memory of a rank is limited, to the least of all and to anything more, before each step.
TEST(RandomPlans, GiveTheSameResultWithMemoryThatIsLimitedMeanwhile) {
  std::uint32_t limited = 0;
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    RunOptions options = random_run(seed);
    options.faults = {};
    options.config.offload_param.pin_memory = options.config.offload_optimizer.pin_memory = false;
    options.config.penstock.host_budget += 1_MiB * (seed % 3);
    const test::RunResult expected = train(options);
    options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
      SeededRandom random(seed * 100 + step * 10 + rank);
      const ByteCount least = runtime.memory_least(), all = runtime.host_memory().size();
      const std::uint64_t more = (all - std::min(all, least)).value();
      const ByteCount limit = least + ByteCount(random.below(3) == 0 ? random.below(more + 1) : 0);
      const auto done = runtime.limit_memory(limit);
      ASSERT_TRUE(done) << seed << ": " << done.error().message();
      if (limit < all) ++limited;
    };
    const test::RunResult result = train(options);
    ASSERT_EQ(expected.error.has_value(), result.error.has_value())
        << seed << ": " << (result.error ? result.error->message() : expected.error->message());
    EXPECT_EQ(result.digest, expected.digest) << seed;
  }
  EXPECT_GT(limited, 60u);
}

/// With room on the device for orders that the plan has not rehearsed.
RunOptions random_run_in_any_order(std::uint64_t seed) {
  RunOptions options = random_run(seed);
  SeededRandom random(seed + 5000);
  options.model.checkpoints = {};
  const std::uint32_t orders = random.below(2) == 0 ? 1 : options.steps;
  options.order_of_use = [=, units = options.model.units.size()](std::uint32_t step, std::uint32_t) {
    return test::random_order(seed * 16 + step % orders, units);
  };
  Config& config = options.config;
  config.overlap_comm = random.below(2) == 0;
  config.max_live_parameters = ElementCount(random.below(100'000));
  config.reduce_bucket_size = ElementCount(1 + random.below(100'000));
  config.penstock.host_budget = {};
  Config planned = config;
  planned.offload_param.nvme_paths = planned.offload_optimizer.nvme_paths = {"."};
  const MemoryPlan plan =
      plan_memory(planned, options.model, options.ranks, options.ranks, options.device_memory).value();
  config.penstock.device_budget = (plan.device_minimum + plan.host_leases) * 3;
  if (random.below(3) == 0) return options;
  config.penstock.host_budget = test::smallest_host_budget(options) + ByteCount(random.below(300'000));
  return options;
}

TEST(RandomPlans, AreNotExceededInAnyOrderOfUse) {
  std::vector<std::uint64_t> seeds = {1352,
                                      1605};  // where shards are read ahead for a step that does not come
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) seeds.push_back(seed);
  for (const std::uint64_t seed : seeds) {
    const test::RunResult result = train(random_run_in_any_order(seed));

    const std::string what = "seed " + std::to_string(seed);
    ASSERT_FALSE(result.error) << what << ": " << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << what;
  }
}

TEST(RandomPlans, AreNotExceededByEvaluations) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    RunOptions options{.ranks = 1, .model = test::deep_model(), .seed = seed};
    options.device_memory = tiers::DeviceMemory::separate;
    options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.penstock.host_budget = test::smallest_host_budget(options);
    tiers::Stream* stream = nullptr;
    options.before_initialize = [&](Engine&, tiers::Stream& of_trainer) { stream = &of_trainer; };
    options.after_steps = [&](Engine& engine) -> Result<void> {
      for (std::uint32_t i = 0; i < 400; ++i) PENSTOCK_TRY(engine.acquire(i % 8, *stream));
      return ok();
    };

    const test::RunResult result = train(options);

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

TEST(RandomPlans, TrainWithTheSmallestBudgetAndALittleMore) {
  std::vector<std::uint64_t> seeds = {160, 206, 221, 483, 645, 909};  // where tiles were once read twice
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) seeds.push_back(seed);
  for (const std::uint64_t seed : seeds) {
    SeededRandom random(seed);
    RunOptions options{
        .ranks = static_cast<std::uint32_t>(1 + random.below(3)),
        .micro_batches = static_cast<std::uint32_t>(1 + random.below(random.below(4) == 0 ? 12 : 3)),
        .steps = 2,
        .model = test::random_model(random)};
    if (random.below(2) == 0) options.config.grad_accum_dtype = DType::fp32;
    if (random.below(4) == 0)
      options.configured_micro_batches = static_cast<std::uint32_t>(1 + random.below(3));
    test::update_in_backward_at_random(options, seed);
    const std::string in_memory = train(options).digest;
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    if (random.below(3) > 0) options.config.offload_param.device = OffloadDevice::nvme;
    options.config.penstock.host_budget = test::smallest_host_budget(options);
    if (random.below(2) == 0) options.config.penstock.host_budget += ByteCount(random.below(600'000));
    options.seed = seed;

    const test::RunResult result = train(options);

    ASSERT_FALSE(result.error) << "seed " << seed << ": " << result.error->message();
    EXPECT_EQ(result.digest, in_memory) << "seed " << seed;
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{}) << "seed " << seed;
  }
}

}  // namespace
}  // namespace penstock::zero
