// Frozen parameters: no gradient, no optimizer state, no write after the first one, and no effect on the others' bits.
#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <bit>
#include <vector>

namespace penstock::zero::test {
namespace {

using cpu_adam::StateFormat;
using cpu_adam::StateKind;
using penstock::test::SeededRandom;

constexpr std::uint32_t frozen_group = 2;

/// A value that bf16 holds: a frozen parameter has no master.
float initial_in_bf16(ParameterId parameter, std::uint64_t element) {
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(initial_value(parameter, element)) & 0xffff0000u);
}

/// Some parameters are in a third group, which does not decay; of some units all are.
ModelLayout random_frozen_model(SeededRandom& random) {
  ModelLayout model = random_model(random);
  model.groups.push_back({.frozen = true, .weight_decay = 0});
  for (std::size_t u = 1; u < model.units.size(); ++u) {
    const bool whole_unit = random.below(3) == 0;
    for (ParameterLayout& parameter : model.units[u].parameters) {
      if (whole_unit || random.below(2) == 0) parameter.group = frozen_group;
    }
  }
  return model;
}

RunOptions random_run(std::uint64_t seed) {
  constexpr std::array devices = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};
  constexpr std::array formats = {StateFormat::fp32, StateFormat::split};
  SeededRandom random(seed);
  RunOptions options{.ranks = static_cast<std::uint32_t>(1 + random.below(4)),
                     .micro_batches = static_cast<std::uint32_t>(1 + random.below(3)),
                     .model = random_frozen_model(random),
                     .seed = seed,
                     .initial = initial_in_bf16};
  Config& config = options.config;
  config.stage = static_cast<std::uint32_t>(random.below(4));
  config.offload_optimizer.device = devices[random.below(devices.size())];
  if (config.stage == 3) config.offload_param.device = devices[random.below(devices.size())];
  config.penstock.state_format = formats[random.below(formats.size())];
  if (random.below(2) == 0) options.device_memory = tiers::DeviceMemory::separate;
  if (random.below(2) == 0) config.grad_accum_dtype = DType::fp32;
  if (config.stage == 3 && random.below(3) == 0) config.cpu_update_ratio = 0.5f;
  if (random.below(3) == 0) {
    options.gradients =
        random.below(2) == 0 ? RunOptions::Gradients::on_host : RunOptions::Gradients::on_device;
    options.device_memory = tiers::DeviceMemory::host;
  }
  return options;
}

/// The same run, in which the group is trained with gradients of 0.
RunOptions with_gradients_of_zero(RunOptions options) {
  options.model.groups[frozen_group].frozen = false;
  options.group_without_gradients = frozen_group;
  return options;
}

TEST(EngineFrozen, GivesTheBitsOfGradientsOfZero) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 48)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RunOptions options = random_run(seed);
    const RunResult expected = train(with_gradients_of_zero(options));
    ASSERT_FALSE(expected.error) << expected.error->message();

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, expected.digest);
    EXPECT_EQ(result.parameters, expected.parameters);
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    EXPECT_LE(result.host_peak, result.host_budget);
  }
}

/// Eight layers with a frozen weight, of which the device holds three, and a small trained one beside it.
RunOptions adapters_on_disk(std::uint32_t steps) {
  RunOptions options{
      .ranks = 2, .steps = steps, .model = deep_model(), .seed = 11, .initial = initial_in_bf16};
  options.model.groups[0] = {.frozen = true};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.penstock.host_budget = smallest_host_budget(options);
  return options;
}

TEST(EngineFrozen, WritesNothingOfFrozenParametersAfterTheirFirstValues) {
  const auto written = [](std::uint32_t steps) {
    const RunResult result = train(adapters_on_disk(steps));
    EXPECT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
    return result.bytes_written;
  };
  const ByteCount first_values = written(0), three_steps = written(3);
  // A bias of 200 elements in each of 8 layers and 2 ranks: a shard, a tile, and a gradient in each of two
  // micro-batches, all of 4 KiB. The frozen weights have 40 KB each.
  EXPECT_GE(first_values, 8 * 40'000_B);
  EXPECT_LE(three_steps - first_values, 3 * 8 * 2 * 4 * 4_KiB);
}

TEST(EngineFrozen, HasNoOptimizerStateNorGradientForFrozenParameters) {
  const auto plan_of = [](bool frozen) {
    ModelLayout model = deep_model();
    model.groups[0].frozen = frozen;
    Config config = RunOptions::default_config();
    config.offload_optimizer.device = OffloadDevice::cpu;
    return plan_memory(config, model, 2, 2).value();
  };
  const MemoryPlan trained = plan_of(false), frozen = plan_of(true);
  EXPECT_EQ(trained.tiles, 16u);
  EXPECT_EQ(frozen.tiles, 8u);
  EXPECT_EQ(frozen.host_shards, trained.host_shards);
  // Of each layer the bias is left: 256 elements in a rank's shard, in 4 KiB.
  EXPECT_EQ(frozen.host_tiles, 8 * 4_KiB);
  EXPECT_EQ(frozen.host_gradients, 8 * 4_KiB);
  EXPECT_LT(frozen.device_minimum, trained.device_minimum);
}

TEST(EngineFrozen, TrainsNothingWhereAllParametersAreFrozen) {
  constexpr std::array devices = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};
  for (std::uint32_t i = 0; i < 12; ++i) {
    RunOptions options{.ranks = 1 + i % 2, .model = deep_model(), .seed = i, .initial = initial_in_bf16};
    for (OptimizerGroup& group : options.model.groups) group.frozen = true;
    options.config.stage = i % 4;
    options.config.offload_optimizer.device = devices[i % 3];
    if (options.config.stage == 3) options.config.offload_param.device = devices[i / 4];
    if (i % 3 == 0) options.device_memory = tiers::DeviceMemory::separate;
    SCOPED_TRACE(i);

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.outcomes.back().gradient_norm, 0);
    EXPECT_EQ(result.outcomes.back().step, 3u);
    ASSERT_EQ(result.parameters.size(), 17u);
    for (std::uint64_t e = 0; e < 200; ++e) EXPECT_EQ(result.parameters[1][e], initial_in_bf16({0, 1}, e));
    EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  }
}

TEST(EngineFrozen, IsSavedAsMastersAndContinuesOnOtherRanks) {
  for (const std::uint64_t seed : penstock::test::seeds(100, 112)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_run(seed);
    options.config.penstock.state_format = StateFormat::fp32;
    SavedStates saved(options.model);
    options.steps = 2;
    options.after_steps = [&](Engine& engine) { return saved.save(engine); };
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    std::uint64_t values_of_all = 0;
    for (const auto& [key, values] : saved.states()) {
      const auto& [id, kind] = key;
      const ParameterLayout& parameter = options.model.parameter(id);
      values_of_all += parameter.count.value();
      if (parameter.group == frozen_group) {
        EXPECT_EQ(kind, StateKind::master);
        EXPECT_EQ(values.front(), initial_in_bf16(id, 0));
      }
    }
    EXPECT_EQ(saved.written(), values_of_all);  // each value once

    RunOptions other = random_run(seed);
    other.ranks = 1 + options.ranks % 4;
    other.config.penstock.state_format = StateFormat::fp32;
    other.first_step = other.steps = 2;
    other.restore = [&](Engine& engine) { return saved.restore(engine, 2); };
    const RunResult result = train(other);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, expected.digest);
    EXPECT_EQ(result.parameters, expected.parameters);
  }
}

}  // namespace
}  // namespace penstock::zero::test
