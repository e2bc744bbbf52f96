// An optimizer that is a function of the trainer: what it gets, equal bits in every tier, and states that are saved and
// restored.
#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"

#include "cpu_adam/adam_coefficients.hpp"
#include "kernels/adam_formula.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <mutex>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using cpu_adam::Optimizer;
using cpu_adam::StateKind;
using penstock::test::SeededRandom;

constexpr std::array devices = {OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme};

/// Adam as a trainer would write it, with the formula's own operations.
Result<void> adam(const UpdateSegment& s) {
  const cpu_adam::AdamConfig config{.learning_rate = s.settings.learning_rate,
                                    .beta1 = s.settings.beta1,
                                    .beta2 = s.settings.beta2,
                                    .epsilon = s.settings.epsilon,
                                    .weight_decay = s.settings.weight_decay};
  PENSTOCK_TRY_ASSIGN(const auto coefficients, cpu_adam::adam_coefficients(config, s.step, 1.0f));
  const kernels::AdamOperands<kernels::ScalarLane> operands(coefficients);
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    kernels::adam_update<kernels::ScalarLane>(coefficients.decay_mode, operands, s.gradient[i], s.master[i],
                                              s.first_moment[i], s.second_moment[i]);
  }
  return ok();
}

/// An optimizer with as many moments as there are, which have both signs.
Result<void> signed_moments(const UpdateSegment& s) {
  for (std::size_t i = 0; i < s.gradient.size(); ++i) {
    float change = s.gradient[i];
    if (!s.first_moment.empty()) change = s.first_moment[i] = s.settings.beta1 * s.first_moment[i] + change;
    if (!s.second_moment.empty()) change = s.second_moment[i] = 0.25f * s.second_moment[i] - change;
    s.master[i] -= s.settings.learning_rate * change;
  }
  return ok();
}

RunOptions random_run(std::uint64_t seed) {
  SeededRandom random(seed);
  RunOptions options{.ranks = static_cast<std::uint32_t>(1 + seed % 3),
                     .micro_batches = static_cast<std::uint32_t>(1 + random.below(2)),
                     .model = random_model(random),
                     .seed = seed};
  options.model.groups[1] = {
      .learning_rate_factor = 0.5, .betas = {{0.5, 0.75}}, .epsilon = 1e-3, .weight_decay = 0};
  options.config.gradient_clipping = 0.5f;
  const DType dtypes[] = {DType::bf16, DType::fp32, DType::fp16};
  options.config.dtype = options.config.grad_accum_dtype = dtypes[(seed / 3) % 3];
  if (seed % 2 == 0) options.config.grad_accum_dtype = DType::fp32;
  return options;
}

TEST(EngineCustomUpdate, GivesTheBitsOfAdamInEveryTierAndTileSize) {
  for (std::uint64_t seed = 0; seed < 9; ++seed) {
    RunOptions options = random_run(seed);
    const RunResult expected = train(options);
    ASSERT_FALSE(expected.error) << expected.error->message();
    ASSERT_LT(expected.outcomes[0].clip_factor, 1);
    options.config.optimizer.type = Optimizer::custom_two_moments;
    options.update = adam;
    for (const OffloadDevice of_parameters : devices) {
      for (const OffloadDevice of_optimizer : {OffloadDevice::cpu, OffloadDevice::nvme}) {
        SCOPED_TRACE("seed " + std::to_string(seed) + ", " + std::string(to_string(of_parameters)) + ", " +
                     std::string(to_string(of_optimizer)));
        options.config.offload_param.device = of_parameters;
        options.config.offload_optimizer.device = of_optimizer;
        options.config.penstock.tile_elements =
            ElementCount(of_parameters == OffloadDevice::cpu ? 65536 : 16384);
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

TEST(EngineCustomUpdate, GivesTheBitsOfAdamWithSeveralWorkers) {
  RunOptions options = random_run(4);
  options.model = small_model();
  options.seed = {};
  options.threads = 2;
  const RunResult expected = train(options);
  options.config.optimizer.type = Optimizer::custom_two_moments;
  options.update = adam;
  options.config.offload_optimizer.device = OffloadDevice::nvme;

  const RunResult result = train(options);

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
}

void expect_to_continue(Optimizer type, const UpdateFunction& update, std::uint64_t seed) {
  RunOptions options = random_run(seed);
  options.config.optimizer.type = type;
  options.update = update;
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.steps = 4;
  const RunResult expected = train(options);
  ASSERT_FALSE(expected.error) << expected.error->message();
  SavedStates saved(options.model);

  const RunResult result = train_in_two_parts(options, saved);

  for (const auto& [key, values] : saved.states()) EXPECT_TRUE(cpu_adam::keeps(type, key.second));
  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(result.digest, expected.digest);
  EXPECT_EQ(result.parameters, expected.parameters);
}

TEST(EngineCustomUpdate, ContinuesFromStatesThatWereSaved) {
  for (const std::uint64_t seed : {0u, 4u, 8u}) {
    SCOPED_TRACE(seed);
    expect_to_continue(Optimizer::custom_two_moments, adam, seed);
    expect_to_continue(Optimizer::custom_no_moments, signed_moments, seed);
    expect_to_continue(Optimizer::custom_one_moment, signed_moments, seed);
    expect_to_continue(Optimizer::custom_two_moments, signed_moments, seed);
  }
}

/// How often each element was passed in each step.
class Passes {
 public:
  void add(const UpdateSegment& s) {
    const std::scoped_lock lock(mutex_);
    for (std::size_t i = 0; i < s.gradient.size(); ++i) ++count_[{s.step, s.parameter, s.first + i}];
  }
  /// Of the elements that `model` has, those of `step` that were not passed `wanted` times.
  [[nodiscard]] std::size_t wrong(const ModelLayout& model, std::uint64_t step,
                                  const std::function<int(ParameterId)>& wanted) {
    std::size_t wrong = 0;
    for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
      for (std::uint32_t index = 0; index < model.units[unit].parameters.size(); ++index) {
        const ParameterId id{unit, index};
        for (std::uint64_t e = 0; e < model.parameter(id).count.value(); ++e) {
          const auto found = count_.find({step, id, e});
          wrong += (found == count_.end() ? 0 : found->second) != wanted(id);
        }
      }
    }
    return wrong;
  }
  [[nodiscard]] std::size_t elements() const { return count_.size(); }
  [[nodiscard]] bool any_twice() const {
    return std::any_of(count_.begin(), count_.end(), [](const auto& one) { return one.second > 1; });
  }

 private:
  std::mutex mutex_;
  std::map<std::tuple<std::uint64_t, ParameterId, std::uint64_t>, int> count_;
};

TEST(EngineCustomUpdate, PassesEachTrainedElementOnceAStepAndNoPadding) {
  for (std::uint32_t ranks = 1; ranks <= 3; ++ranks) {
    Passes passes;
    RunOptions options{.ranks = ranks, .seed = ranks};
    options.model.groups.push_back({.frozen = true});
    options.model.units[0].parameters[1].group = 2;
    options.config.optimizer.type = Optimizer::custom_one_moment;
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.gradient_scale = [](std::uint32_t step, std::uint32_t) { return step == 1 ? INFINITY : 1.0f; };
    options.units_without_gradient = [](std::uint32_t step) {
      return step == 2 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{};
    };
    const ModelLayout& model = options.model;
    options.update = [&](const UpdateSegment& s) {
      passes.add(s);
      const ParameterLayout& parameter = model.parameter(s.parameter);
      EXPECT_EQ(s.name, parameter.name);
      EXPECT_EQ(s.group, parameter.group);
      EXPECT_EQ(s.settings.weight_decay, parameter.group == 1 ? 0.0f : 0.1f);
      EXPECT_LE(s.gradient.size(), 16384u);
      EXPECT_EQ(s.master.size(), s.gradient.size());
      EXPECT_EQ(s.first_moment.size(), s.gradient.size());
      EXPECT_TRUE(s.second_moment.empty());
      return ok();
    };

    const RunResult result = train(options);

    ASSERT_FALSE(result.error) << result.error->message();
    const auto frozen = [&](ParameterId id) { return model.parameter(id).group == 2; };
    const auto once = [&](ParameterId id) { return frozen(id) ? 0 : 1; };
    const auto without_unit_1 = [&](ParameterId id) { return frozen(id) || id.unit == 1 ? 0 : 1; };
    EXPECT_EQ(passes.wrong(model, 1, once), 0u);
    EXPECT_EQ(passes.wrong(model, 2, without_unit_1), 0u);
    const std::size_t trained = model.element_count().value() - 777;
    EXPECT_EQ(passes.elements(), trained + trained - (40'001 + 130 + 9'000));
  }
}

struct Failure {
  UpdateFunction fail;
  const char* cause;
};
const Failure failures[] = {
    {[](const UpdateSegment&) -> Result<void> {
       return Error(ErrorCode::interrupted, "my update").reason("my reason");  // not of the engine's
     },
     "my reason"},
    {[](const UpdateSegment&) -> Result<void> { throw std::runtime_error("my exception"); }, "my exception"},
    {[](const UpdateSegment&) -> Result<void> { throw 7; }, "not a std::exception"},
};

TEST(EngineCustomUpdate, FailsWithTheSegmentAfterAnErrorAndUpdatesNothingTwice) {
  for (const OffloadDevice device : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    for (const Failure& failure : failures) {
      for (std::uint32_t ranks = 1; ranks <= 2; ++ranks) {
        SCOPED_TRACE(std::string(to_string(device)) + ", " + failure.cause);
        Passes passes;
        RunOptions options{.ranks = ranks, .seed = 1, .attempts = 5};
        options.config.optimizer.type = Optimizer::custom_one_moment;
        options.config.offload_optimizer.device = device;
        bool fails = true;
        options.update = [&](const UpdateSegment& s) -> Result<void> {
          passes.add(s);
          for (float& master : s.master) master += 1;
          const bool here = s.step == 2 && s.parameter == ParameterId{1, 0} && s.first == 0;
          if (!here || !std::exchange(fails, false)) return ok();
          return failure.fail(s);
        };

        const RunResult result = train(options);

        ASSERT_TRUE(result.error);
        const auto of_rank = std::find_if(result.errors.begin(), result.errors.end(), [](const auto& error) {
          return error && error->code() == ErrorCode::failed_state;
        });
        ASSERT_NE(of_rank, result.errors.end());
        const std::string message = (*of_rank)->message();
        EXPECT_NE(message.find("weight of unit 1, elements 0 to"), std::string::npos) << message;
        EXPECT_NE(message.find(failure.cause), std::string::npos) << message;
        EXPECT_TRUE(result.engine_failed);
        EXPECT_FALSE(passes.any_twice());
      }
    }
  }
}

TEST(EngineCustomUpdate, ReportsAStateThatBecomesNonFinite) {
  for (const int state : {0, 1, 2}) {
    RunOptions options{.ranks = 1, .seed = 1};
    options.config.optimizer.type = Optimizer::custom_two_moments;
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.update = [&](const UpdateSegment& s) {
      const std::span<float> spans[] = {s.master, s.first_moment, s.second_moment};
      if (s.step == 2 && s.parameter == ParameterId{1, 2}) spans[state].back() = state == 1 ? NAN : INFINITY;
      return ok();
    };

    const RunResult result = train(options);

    ASSERT_TRUE(result.error);
    EXPECT_EQ(result.error->code(), ErrorCode::non_finite) << result.error->message();
    const UnitLayout& unit = options.model.units[1];
    EXPECT_NE(result.error->fields().object.find(unit.name + "." + unit.parameters[2].name),
              std::string::npos)
        << result.error->message();
    EXPECT_TRUE(result.engine_failed);
  }
}

}  // namespace
}  // namespace penstock::zero::test
