// The trace that the layout gives is the one that a run records.
#include "zero/layout/step_trace.hpp"
#include "kit/cluster.hpp"

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
  if (random.below(4) ==
      0) {  // all flats stay gathered until the parameters change, and frozen ones for good
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

TEST(StepTrace, IsTheOneThatARunRecords) {
  for (std::uint64_t seed = 0; seed < 32; ++seed) {
    RunOptions options = random_run(seed);
    std::vector<std::optional<swap::AccessTrace>> recorded(options.ranks);
    options.before_step = [&](std::uint32_t step, std::uint32_t rank, swap::Runtime& runtime) {
      if (step == 1) runtime.begin_trace();
      if (step == 2) recorded[rank] = runtime.end_trace("train").value();
    };
    const test::RunResult result = train(options);
    ASSERT_FALSE(result.error) << seed << ": " << result.error->message();

    Config config = options.config;
    config.gradient_accumulation_steps = options.micro_batches;
    config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {"."};
    for (std::uint32_t rank = 0; rank < options.ranks; ++rank) {
      const MemoryPlan plan =
          plan_memory(config, options.model, options.ranks, options.ranks, options.device_memory).value();
      const auto derived =
          derive_trace(config, options.model, plan, {.rank = rank, .micro_batches = options.micro_batches});
      ASSERT_TRUE(derived) << derived.error().message();
      const auto difference = swap::first_difference(*derived, *recorded[rank]);
      EXPECT_FALSE(difference) << "seed " << seed << ", rank " << rank << ": " << to_string(*difference);
      EXPECT_EQ(derived->tensors, recorded[rank]->tensors) << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace penstock::zero
