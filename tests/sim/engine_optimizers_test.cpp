// Lion, Adagrad and Muon in the engine: equal bits in every tier, and states that are saved and restored.
#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"

#include <gtest/gtest.h>
#include <array>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using cpu_adam::Optimizer;
using penstock::test::SeededRandom;

constexpr std::array devices = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

/// Makes every other parameter a matrix that Muon updates.
void use_muon(ModelLayout& model) {
  model.groups.push_back({.use_muon = true});
  bool is_muons = false;
  for (UnitLayout& unit : model.units) {
    for (ParameterLayout& parameter : unit.parameters) {
      const std::uint64_t count = parameter.count.value();
      if ((is_muons = !is_muons) == false) continue;
      parameter.group = static_cast<std::uint32_t>(model.groups.size() - 1);
      const std::uint64_t rows = count % 32 == 0 ? 32 : count % 2 == 0 ? 2 : 1;
      parameter.shape = {rows, count / rows};
    }
  }
}

RunOptions random_run(Optimizer optimizer, std::uint64_t seed) {
  SeededRandom random(seed);
  RunOptions options{.ranks = static_cast<std::uint32_t>(1 + random.below(3)),
                     .micro_batches = static_cast<std::uint32_t>(1 + random.below(2)),
                     .model = random_model(random),
                     .seed = seed};
  options.config.optimizer.type = optimizer;
  if (optimizer == Optimizer::muon) use_muon(options.model);
  using cpu_adam::StateFormat;
  const RunFormat formats[] = {
      {StateFormat::fp32}, {StateFormat::fp32, DType::fp32}, narrow_formats[0], narrow_formats[1]};
  formats[seed % (optimizer == Optimizer::muon ? 2 : std::size(formats))].set(options.config);
  return options;
}

class EngineOptimizers : public testing::TestWithParam<Optimizer> {};

TEST_P(EngineOptimizers, GiveTheSameBitsInEveryTier) {
  for (std::uint64_t seed = 0; seed < 6; ++seed) {
    RunOptions options = random_run(GetParam(), seed);
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    RunOptions adam = options;
    adam.config.optimizer.type = Optimizer::adam;
    for (OptimizerGroup& group : adam.model.groups) group.use_muon = false;
    EXPECT_NE(train(adam).digest, expected.digest);
    for (const OffloadDevice of_parameters : devices) {
      for (const OffloadDevice of_optimizer : {OffloadDevice::cpu, OffloadDevice::nvme}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(to_string(of_parameters)) + ", " +
                     std::string(to_string(of_optimizer)));
        options.config.offload_param.device = of_parameters;
        options.config.offload_optimizer.device = of_optimizer;
        options.device_memory = seed % 2 == 0 ? tiers::DeviceMemory::host : tiers::DeviceMemory::separate;
        options.config.penstock.host_budget = smallest_host_budget(options);

        const RunResult result = train(options);

        ASSERT_FALSE(result.error) << result.error->message();
        EXPECT_EQ(result.digest, expected.digest);
        EXPECT_EQ(result.parameters, expected.parameters);
        EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
      }
    }
  }
}

TEST_P(EngineOptimizers, ContinueFromStatesThatWereSaved) {
  for (std::uint64_t seed = 3; seed < 7; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_run(GetParam(), seed);
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.steps = 4;
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    SavedStates saved(options.model);

    const RunResult result = train_in_two_parts(options, saved);

    ASSERT_FALSE(result.error) << result.error->message();
    EXPECT_EQ(result.digest, expected.digest);
    EXPECT_EQ(result.parameters, expected.parameters);
    for (const auto& [key, values] : saved.states()) {
      const OptimizerGroup& group = options.model.groups[options.model.parameter(key.first).group];
      const bool is_adams = GetParam() == Optimizer::muon && !group.use_muon;
      EXPECT_TRUE(cpu_adam::keeps(is_adams ? Optimizer::adam : GetParam(), key.second));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Of, EngineOptimizers,
                         testing::Values(Optimizer::lion, Optimizer::adagrad, Optimizer::muon),
                         [](const auto& of) { return std::string(to_string(of.param)); });

}  // namespace
}  // namespace penstock::zero::test
