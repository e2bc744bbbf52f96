// Gradients from memory of the trainer, and units that get none.
#include "kit/cluster.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using Gradients = RunOptions::Gradients;

RunOptions run(std::uint32_t ranks, std::uint64_t seed) {
  RunOptions options{.ranks = ranks, .seed = seed};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.gradient_clipping = 0;
  return options;
}

// small_model() has a parameter that two units share, whose second gradient is added to the first.
TEST(EngineCallerGradients, GiveTheBitsOfTheEnginesSlots) {
  for (const DType dtype : {DType::bf16, DType::fp32}) {
    for (const std::uint32_t ranks : {1u, 2u}) {
      for (const auto memory : {tiers::DeviceMemory::host, tiers::DeviceMemory::separate}) {
        RunOptions options = run(ranks, 3);
        options.config.dtype = options.config.grad_accum_dtype = dtype;
        options.device_memory = memory;
        const RunResult expected = train(options);
        ASSERT_FALSE(expected.error) << expected.error->message();
        for (const Gradients where : {Gradients::on_device, Gradients::on_host}) {
          SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::string(to_string(dtype)) + ", " +
                       std::to_string(int(where)));
          options.gradients = where;
          options.device_memory_of_trainer = 1_MiB;
          options.seed = *options.seed + 1;

          const RunResult result = train(options);

          ASSERT_FALSE(result.error) << result.error->message();
          EXPECT_EQ(result.digest, expected.digest);
          EXPECT_EQ(result.parameters, expected.parameters);
        }
      }
    }
  }
}

TEST(EngineCallerGradients, ThatFindNoRoomOnTheDeviceChangeNothing) {
  RunOptions options = run(2, 3);
  options.gradients = Gradients::on_host;
  options.device_memory = tiers::DeviceMemory::separate;

  const RunResult result = train(options);

  ASSERT_TRUE(result.error);
  EXPECT_EQ(result.error->code(), ErrorCode::budget_too_small) << result.error->message();
}

/// The states of all ranks, by unit.
struct SavedStates {
  std::mutex mutex;
  std::map<std::uint32_t, std::uint64_t> sums;  // in any order of ranks

  Result<void> save(Engine& engine) {
    return engine.read_states([this](ParameterId id, cpu_adam::StateKind kind, std::uint64_t first,
                                     std::span<const float> values) -> Result<void> {
      const std::lock_guard lock(mutex);
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::uint64_t place = (first + i) * 3 + static_cast<std::uint64_t>(kind);
        sums[id.unit] += std::bit_cast<std::uint32_t>(values[i]) * (2 * place + 1);
      }
      return ok();
    });
  }
};

class EngineWithoutGradient : public testing::TestWithParam<cpu_adam::StateFormat> {};

TEST_P(EngineWithoutGradient, LeavesTheUnitAsItIs) {
  for (const std::uint32_t ranks : {1u, 2u}) {
    for (const auto device : {OffloadDevice::cpu, OffloadDevice::nvme}) {
      RunOptions options = run(ranks, 5);
      options.config.penstock.state_format = GetParam();
      options.config.offload_param.device = options.config.offload_optimizer.device = device;
      const auto sums_of = [&](std::uint32_t steps, bool frozen) {
        SavedStates saved;
        RunOptions mine = options;
        mine.steps = steps;
        mine.after_steps = [&](Engine& engine) { return saved.save(engine); };
        // Unit 1 is trained in step 0 only.
        mine.units_without_gradient = [frozen](std::uint32_t step) {
          return frozen && step > 0 ? std::vector<std::uint32_t>{1} : std::vector<std::uint32_t>{};
        };
        const RunResult result = train(mine);
        EXPECT_FALSE(result.error) << result.error->message();
        EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
        return saved.sums;
      };
      const auto one_step = sums_of(1, false), trained = sums_of(3, false), frozen = sums_of(3, true);
      EXPECT_EQ(frozen.at(1), one_step.at(1)) << ranks;
      EXPECT_NE(frozen.at(1), trained.at(1));
      EXPECT_EQ(frozen.at(0), trained.at(0));  // without clipping, units are independent
      EXPECT_EQ(frozen.at(2), trained.at(2));
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Every, EngineWithoutGradient,
                         testing::Values(cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split,
                                         cpu_adam::StateFormat::split_q8),
                         [](const auto& format) { return std::string(to_string(format.param)); });

// The head shares the table of the embedding.
TEST(EngineWithoutGradients, LeavesASharedParameterItsOtherGradients) {
  RunOptions options = run(2, 9);
  options.units_without_gradient = [](std::uint32_t) { return std::vector<std::uint32_t>{2}; };
  const RunResult result = train(options);
  ASSERT_FALSE(result.error) << result.error->message();

  const RunResult all = train(run(2, 9));
  EXPECT_NE(result.parameters[0], all.parameters[0]);  // the table
  EXPECT_EQ(result.parameters[1], all.parameters[1]);  // the positions: they have one user
}

TEST(EngineWithoutGradients, DoesNotCountThePreviousGradientInTheNorm) {
  RunOptions options = run(1, 9);
  options.steps = 2;
  const auto norm_of = [&](std::vector<std::uint32_t> without) {
    options.units_without_gradient = [=](std::uint32_t step) {
      return step == 1 ? without : std::vector<std::uint32_t>();
    };
    return train(options).outcomes.at(1).gradient_norm;
  };
  const double all = norm_of({}), rest = norm_of({1}), block = norm_of({0, 2});
  EXPECT_NEAR(rest * rest + block * block, all * all, 1e-9 * all * all);
  EXPECT_GT(block, 0.0);
  EXPECT_EQ(norm_of({0, 1, 2}), 0.0);
}

}  // namespace
}  // namespace penstock::zero::test
