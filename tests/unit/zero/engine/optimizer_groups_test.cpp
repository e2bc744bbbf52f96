// Optimizer groups with settings of their own, which change between steps.
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint64_t elements = 300;

/// A rank in host memory with one unit of two parameters, each in a group of its own. Gradients grow from step to step:
/// with constant ones the betas would not matter.
class TwoGroups {
 public:
  TwoGroups(const Config& config, std::vector<OptimizerGroup> groups)
      : rank_(Rank::create({.config = config,
                            .model = {.units = {{.name = "unit",
                                                 .parameters = {{"first", ElementCount(elements), 0},
                                                                {"second", ElementCount(elements), 1}}}},
                                      .groups = std::move(groups)}})
                  .value()),
        stream_(rank_->device().create_stream().value()) {
    const auto ones = [](ParameterId, std::uint64_t, std::span<float> v) {
      std::fill(v.begin(), v.end(), 1.0f);
    };
    engine().initialize(ones).value();
  }

  Engine& engine() { return rank_->engine(); }
  tiers::Stream& stream() { return *stream_; }

  Result<StepOutcome> step() {
    PENSTOCK_TRY(engine().begin_step({}));
    PENSTOCK_TRY_ASSIGN(auto gradients, engine().gradients(0, *stream_));
    for (const GradientSlot& slot : gradients.slots()) {
      const HostSpan bytes = tiers::HostDevice::bytes(slot.tensor.bytes);
      std::fill_n(reinterpret_cast<float*>(bytes.data()), bytes.size().value() / sizeof(float), gradient_);
    }
    gradient_ *= 3;
    PENSTOCK_TRY(engine().reduce(std::move(gradients), *stream_));
    return engine().step();
  }

  /// The states that are read.
  std::set<cpu_adam::StateKind> kinds() {
    std::set<cpu_adam::StateKind> all;
    engine()
        .read_states([&](ParameterId, cpu_adam::StateKind kind, std::uint64_t,
                         std::span<const float>) -> Result<void> {
          all.insert(kind);
          return ok();
        })
        .value();
    return all;
  }

  /// A master weight of each parameter, by its index.
  std::map<std::uint32_t, float> masters() {
    std::map<std::uint32_t, float> values;
    engine().finish_update().value();
    engine()
        .read_states([&](ParameterId parameter, cpu_adam::StateKind kind, std::uint64_t,
                         std::span<const float> of_tile) -> Result<void> {
          if (kind == cpu_adam::StateKind::master) values[parameter.index] = of_tile.front();
          return ok();
        })
        .value();
    return values;
  }

 private:
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
  float gradient_ = 0.25f;
};

Config usual() {
  Config config;
  config.optimizer = {.learning_rate = 0.01, .weight_decay = 0.1};
  config.gradient_clipping = 0;
  return config;
}

/// What a run gives in which both parameters have the settings of `config`.
float expected(const Config& config, int steps = 3) {
  TwoGroups run(config, {{}, {}});
  for (int i = 0; i < steps; ++i) run.step().value();
  return run.masters().at(0);
}

TEST(OptimizerGroups, UpdateEachParameterAsARunWithItsSettings) {
  Config other = usual();
  other.optimizer.learning_rate *= 0.5;
  other.optimizer.betas = {0.5, 0.75};
  other.optimizer.epsilon = 1e-3;
  other.optimizer.weight_decay = 0.3;
  TwoGroups run(
      usual(),
      {{}, {.learning_rate_factor = 0.5, .betas = {{0.5, 0.75}}, .epsilon = 1e-3, .weight_decay = 0.3}});
  for (int i = 0; i < 3; ++i) run.step().value();

  const auto masters = run.masters();
  EXPECT_EQ(masters.at(0), expected(usual()));
  EXPECT_EQ(masters.at(1), expected(other));
  EXPECT_NE(masters.at(0), masters.at(1));
}

TEST(OptimizerGroups, ReplaceEachSettingAlone) {
  for (const OptimizerGroup& group :
       {OptimizerGroup{.learning_rate_factor = 0.5}, OptimizerGroup{.betas = {{0.5, 0.999}}},
        OptimizerGroup{.betas = {{0.9, 0.75}}}, OptimizerGroup{.epsilon = 1e-2},
        OptimizerGroup{.weight_decay = 0}}) {
    TwoGroups run(usual(), {{}, group});
    for (int i = 0; i < 3; ++i) run.step().value();
    EXPECT_EQ(run.masters().at(0), expected(usual())) << to_string(group);
    EXPECT_NE(run.masters().at(1), expected(usual())) << to_string(group);
  }
}

TEST(OptimizerGroups, ChangeBetweenSteps) {
  Config still = usual();
  still.optimizer.learning_rate = 0;
  TwoGroups run(usual(), {{}, {}});
  run.step().value();
  const auto after_one = run.masters();

  run.engine().set_groups({{}, {.learning_rate_factor = 0}}).value();
  run.step().value();

  EXPECT_EQ(run.engine().groups()[1].learning_rate_factor, 0);
  EXPECT_EQ(run.masters().at(0), expected(usual(), 2));
  EXPECT_EQ(run.masters().at(1), after_one.at(1));
}

TEST(OptimizerGroups, ScaleTheRateOfAScheduler) {
  Config scheduled = usual();
  scheduled.scheduler = LRRangeTest{.lr_range_test_min_lr = 0.01, .lr_range_test_step_size = 2};
  Config half = scheduled;
  half.scheduler = LRRangeTest{.lr_range_test_min_lr = 0.005, .lr_range_test_step_size = 2};
  TwoGroups run(scheduled, {{}, {.learning_rate_factor = 0.5}});
  for (int i = 0; i < 3; ++i) run.step().value();

  EXPECT_EQ(run.masters().at(0), expected(scheduled));
  EXPECT_EQ(run.masters().at(1), expected(half));
}

TEST(OptimizerGroups, AreLeftAsTheyWereByARefusal) {
  TwoGroups run(usual(), {{}, {.weight_decay = 0.5}});
  for (const std::vector<OptimizerGroup>& wrong :
       {std::vector<OptimizerGroup>{}, {{}}, {{}, {}, {}}, {{}, {.weight_decay = -1}}}) {
    const auto refused = run.engine().set_groups(wrong);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument) << refused.error().message();
  }
  EXPECT_EQ(run.engine().groups()[1].weight_decay, 0.5);
}

TEST(OptimizerGroups, OfLionAndAdagradFollowTheirFormulas) {
  Config config = usual();  // the gradient of the first step is 0.25
  config.optimizer.type = cpu_adam::Optimizer::lion;
  TwoGroups lion(config, {{}, {.learning_rate_factor = 2, .weight_decay = 0}});
  lion.step().value();
  EXPECT_FLOAT_EQ(lion.masters().at(0), 1 - 0.01f * (1 + 0.1f));
  EXPECT_FLOAT_EQ(lion.masters().at(1), 1 - 0.02f);
  const auto kinds = lion.kinds();
  EXPECT_EQ(kinds, (std::set{cpu_adam::StateKind::master, cpu_adam::StateKind::first_moment}));

  config.optimizer.type = cpu_adam::Optimizer::adagrad;
  config.optimizer.epsilon = 0.25;
  TwoGroups adagrad(config, {{}, {.weight_decay = 0}});
  adagrad.step().value();
  EXPECT_FLOAT_EQ(adagrad.masters().at(0), 1 - 0.01f * 0.35f / (0.35f + 0.25f));
  EXPECT_FLOAT_EQ(adagrad.masters().at(1), 1 - 0.01f * 0.25f / (0.25f + 0.25f));
  adagrad.step().value();  // with a gradient of 0.75
  const float root = std::sqrt(0.25f * 0.25f + 0.75f * 0.75f);
  EXPECT_FLOAT_EQ(adagrad.masters().at(1), 1 - 0.01f * 0.5f - 0.01f * 0.75f / (root + 0.25f));
  EXPECT_EQ(adagrad.kinds(), (std::set{cpu_adam::StateKind::master, cpu_adam::StateKind::second_moment}));
}

TEST(OptimizerGroups, KeepWhetherTheyAreFrozen) {
  for (const bool frozen : {true, false}) {
    TwoGroups run(usual(), {{}, {.frozen = frozen}});
    const auto refused = run.engine().set_groups({{}, {.frozen = !frozen}});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("groups[1].frozen"), std::string::npos);
    EXPECT_TRUE(run.engine().set_groups({{.weight_decay = 0.5}, {.frozen = frozen}}));
    EXPECT_EQ(run.engine().groups()[1].frozen, frozen);
  }
}

TEST(OptimizerGroups, KeepWhetherTheyUseMuon) {
  TwoGroups run(usual(), {{}, {}});
  const auto refused = run.engine().set_groups({{}, {.use_muon = true}});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("groups[1].use_muon"), std::string::npos)
      << refused.error().message();
}

TEST(OptimizerGroups, GiveFrozenParametersAnEmptySlot) {
  TwoGroups run(usual(), {{}, {.frozen = true}});
  run.engine().begin_step({}).value();
  const auto gradients = run.engine().gradients(0, run.stream()).value();
  ASSERT_EQ(gradients.slots().size(), 2u);
  EXPECT_EQ(gradients.slots()[0].tensor.count(), ElementCount(elements));
  EXPECT_TRUE(gradients.slots()[1].tensor.bytes.empty());
}

TEST(OptimizerGroups, TakeNoGradientOfTheCallerForFrozenParameters) {
  TwoGroups run(usual(), {{}, {.frozen = true}});
  std::vector<float> values(elements, 1.0f);
  const HostTensor mine{HostSpan(std::span(values)), DType::fp32};
  run.engine().begin_step({}).value();

  const auto refused = run.engine().reduce(0, std::vector<GradientSource>{mine, mine}, run.stream());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  EXPECT_NE(refused.error().message().find("the parameter is frozen"), std::string::npos)
      << refused.error().message();
  EXPECT_TRUE(run.engine().reduce(0, std::vector<GradientSource>{mine, {}}, run.stream()));
  EXPECT_TRUE(run.engine().step());
  EXPECT_EQ(run.masters().at(1), 1.0f);
  EXPECT_NE(run.masters().at(0), 1.0f);
}

TEST(OptimizerGroups, OfAUnitThatIsFrozenNeedNoBeginStep) {
  TwoGroups run(usual(), {{.frozen = true}, {.frozen = true}});
  const auto outcome = run.engine().step();
  ASSERT_TRUE(outcome) << outcome.error().message();
}

TEST(OptimizerGroups, OfAUnitThatIsFrozenTakeNoGradient) {
  TwoGroups run(usual(), {{.frozen = true}, {.frozen = true}});
  run.engine().begin_step({.units_without_gradient = {0}}).value();  // may be listed

  const auto refused = run.engine().gradients(0, run.stream());

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  run.engine().begin_step({}).value();
  const auto named = run.engine().gradients(0, run.stream());
  ASSERT_FALSE(named);
  EXPECT_NE(named.error().message().find("all parameters of the unit are frozen"), std::string::npos)
      << named.error().message();
  EXPECT_EQ(run.engine().step().value().gradient_norm, 0);
}

TEST(OptimizerGroups, EndAStepWhoseRateFp32DoesNotHold) {
  Config config = usual();
  config.optimizer.learning_rate = 1e30;
  TwoGroups run(config, {{}, {.learning_rate_factor = 1e30}});

  const auto refused = run.step();

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(refused.error().message().find("learning_rate_factor of optimizer group 1"), std::string::npos)
      << refused.error().message();
  run.engine().set_groups({{}, {}}).value();
  EXPECT_TRUE(run.engine().step());
}

}  // namespace
}  // namespace penstock::zero
