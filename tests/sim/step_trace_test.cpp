// The trace that the layout gives is the one that a run records.
#include "zero/layout/step_trace.hpp"
#include "kit/cluster.hpp"
#include "kit/seeds.hpp"
#include "zero/layout/order_of_use.hpp"

#include <gtest/gtest.h>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::SeededRandom;
using test::RunOptions;

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed);
  RunOptions options{.ranks = 1 + static_cast<std::uint32_t>(random.below(3)),
                     .micro_batches = 1 + static_cast<std::uint32_t>(random.below(3)),
                     .seed = seed};
  options.model = random.below(2) == 0 ? test::deep_model() : test::random_model(random);
  if (random.below(3) == 0) options.model.groups[1].frozen = true;
  Config& config = options.config;
  const auto tier = [&] { return random.below(3) == 0 ? OffloadDevice::cpu : OffloadDevice::nvme; };
  config.offload_optimizer.device = tier();
  config.offload_param.device = tier();
  // All flats stay gathered until the parameters change, and frozen ones for good.
  if (random.below(4) == 0) {
    config.stage = 2;
    config.offload_param = {};
  }
  if (random.below(2) == 0) config.grad_accum_dtype = DType::fp32;
  if (random.below(2) == 0) config.penstock.state_format = cpu_adam::StateFormat::split;
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  config.reduce_bucket_size = ElementCount(1 + random.below(100'000));
  config.overlap_comm = random.below(2) == 0;
  if (random.below(2) == 0) config.max_in_cpu = ElementCount(random.below(60'000));
  if (random.below(3) == 0) {
    config.penstock.release = Release::reuse_distance;
    config.max_reuse_distance = ElementCount(random.below(100'000));
  }
  const std::uint64_t more = random.below(3);
  if (more == 2) return options;  // the plan decides
  config.penstock.host_budget = test::smallest_host_budget(options) + ByteCount(random.below(400'000) * more);
  return options;
}

Config config_of(const RunOptions& options) {
  Config config = options.config;
  config.gradient_accumulation_steps = options.micro_batches;
  config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
  return config;
}

MemoryPlan plan_of(const RunOptions& options) {
  return plan_memory(config_of(options), options.model, options.ranks, options.ranks, options.device_memory)
      .value();
}

/// Compares what each rank of a run uses in its step `from`, counted from 0, with what is derived.
void expect_derived(RunOptions options, std::uint32_t from, const std::vector<std::uint32_t>& acquires) {
  std::vector<std::optional<swap::AccessTrace>> recorded(options.ranks);
  options.steps = from + 2;
  options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
    if (step == from) runtime.begin_trace();
    if (step == from + 1) recorded[rank] = runtime.end_trace("train").value();
  };
  const test::RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();

  const MemoryPlan plan = plan_of(options);
  for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
    const auto derived =
        derive_trace(config_of(options), options.model, plan,
                     {.rank = rank, .micro_batches = options.micro_batches, .acquires = acquires});
    ASSERT_TRUE(derived) << derived.error().message();
    const auto difference = swap::first_difference(*derived, *recorded[rank]);
    EXPECT_FALSE(difference) << "rank " << rank << ": " << to_string(*difference);
    EXPECT_EQ(derived->tensors, recorded[rank]->tensors);
  }
}

TEST(StepTrace, IsTheOneThatARunRecords) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 32)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    expect_derived(random_run(seed), 1, {});
  }
}

TEST(StepTrace, IsThatOfARunThatRecomputesSeveralUnitsAtATime) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 32)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_run(seed);
    options.recomputed_together = 2 + static_cast<std::uint32_t>(seed % 3);
    options.config.penstock.device_budget = plan_of(options).device_minimum;
    expect_derived(options, 2,
                   order_with_recomputation(static_cast<std::uint32_t>(options.model.units.size()),
                                            options.recomputed_together));
  }
}

TEST(StepTrace, RefusesAcquiresThatCannotBe) {
  const RunOptions options = random_run(0);
  const ModelLayout& model = options.model;
  const MemoryPlan plan = plan_of(options);
  const auto refusal = [&](const StepShape& shape) {
    const auto derived = derive_trace(config_of(options), model, plan, shape);
    return derived ? std::string("derived") : derived.error().message();
  };
  const auto units = static_cast<std::uint32_t>(model.units.size());
  std::vector<std::uint32_t> acquires = unit_order(units, 1);
  EXPECT_EQ(refusal({.acquires = acquires}), "derived");
  EXPECT_NE(refusal({.acquires = acquires, .checkpoints = true}).find("acquires"), std::string::npos);
  std::erase(acquires, 0u);
  EXPECT_NE(refusal({.acquires = acquires}).find(model.units[0].name), std::string::npos);
  acquires.push_back(units);
  EXPECT_NE(refusal({.acquires = acquires}).find("units below " + std::to_string(units)), std::string::npos);
}

}  // namespace
}  // namespace penstock::zero
