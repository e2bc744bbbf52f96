// Muon in the engine: each matrix is whole, wherever it is and however many ranks there are. Bits in every tier are
// compared in engine_optimizers_test.cpp.
#include "kit/cluster.hpp"
#include "kit/saved_states.hpp"
#include "unit/cpu_adam/muon_reference.hpp"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <vector>

namespace penstock::zero::test {
namespace {

using cpu_adam::StateKind;

ParameterLayout matrix(const char* name, std::uint64_t rows, std::uint64_t columns) {
  return {.name = name, .count = ElementCount(rows * columns), .group = 1, .shape = {rows, columns}};
}

/// Wide, tall and square matrices of different sizes, more than one block long and shorter, and vectors.
ModelLayout model_of_matrices() {
  const ParameterLayout bias{.name = "bias", .count = ElementCount(77)};
  return {.units = {{.name = "first", .parameters = {matrix("wide", 90, 300), bias, matrix("tall", 130, 20)}},
                    {.name = "second",
                     .parameters = {matrix("square", 64, 64), matrix("row", 1, 50), bias,
                                    matrix("large", 200, 210), matrix("column", 50, 1)}}},
          .groups = {{}, {.use_muon = true, .learning_rate_factor = 0.5, .weight_decay = 0.25}}};
}

RunOptions muon_run(std::uint32_t ranks) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .model = model_of_matrices()};
  options.config.optimizer.type = cpu_adam::Optimizer::muon;
  options.config.optimizer.learning_rate = 0.5;
  options.config.optimizer.muon_learning_rate = 0.25;
  options.config.optimizer.momentum = 0.75;
  return options;
}

/// `states` gets all states after the run.
void train_to(SavedStates& states, RunOptions options) {
  options.after_steps = [&](Engine& engine) { return states.save(engine); };
  const RunResult result = train(options);
  EXPECT_FALSE(result.error) << result.error->message();
}

using Gradients = std::map<ParameterId, std::vector<float>>;

/// What an update of the first step gets, from a run whose flats have no matrices.
Gradients gradients_of(RunOptions options) {
  Gradients gradients;
  std::mutex mutex;
  options.config.optimizer.type = cpu_adam::Optimizer::custom_no_moments;
  options.config.optimizer.muon_learning_rate.reset();
  for (OptimizerGroup& group : options.model.groups) group.use_muon = false;
  options.update = [&](const UpdateSegment& segment) -> Result<void> {
    const std::scoped_lock lock(mutex);
    auto& all = gradients[segment.parameter];
    all.resize(options.model.parameter(segment.parameter).count.value());
    std::copy(segment.gradient.begin(), segment.gradient.end(),
              all.begin() + static_cast<std::ptrdiff_t>(segment.first));
    return ok();
  };
  EXPECT_FALSE(train(options).error);
  return gradients;
}

TEST(EngineMuon, UpdatesEachMatrixAsAWhole) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u}) {
    RunOptions options = muon_run(ranks);
    options.steps = 1;
    options.config.offload_optimizer.device = ranks % 2 == 0 ? OffloadDevice::nvme : OffloadDevice::cpu;
    SavedStates states(options.model), initial(options.model);
    train_to(states, options);
    const Gradients gradients = gradients_of(options);
    RunOptions before = options;
    before.gradient_scale = [](auto...) { return 0.0f; };
    before.model.groups[1].weight_decay = 0;
    train_to(initial, before);
    for (std::uint32_t u = 0; u < options.model.units.size(); ++u) {
      for (std::uint32_t i = 0; i < options.model.units[u].parameters.size(); ++i) {
        const ParameterLayout& parameter = options.model.units[u].parameters[i];
        SCOPED_TRACE(parameter.name + " on " + std::to_string(ranks) + " ranks");
        const ParameterId id{u, i};
        EXPECT_EQ(states.states().contains({id, StateKind::second_moment}), !parameter.is_matrix());
        if (!parameter.is_matrix()) continue;
        cpu_adam::test::MuonReference reference({parameter.rows(), parameter.columns()},
                                                initial.of(id, StateKind::master));
        reference.step({.learning_rate = 0.125f, .momentum = 0.75f, .weight_decay = 0.25f}, gradients.at(id),
                       1);
        const auto &masters = states.of(id, StateKind::master),
                   &momentum = states.of(id, StateKind::first_moment);
        for (std::size_t k = 0; k < momentum.size(); ++k)
          ASSERT_NEAR(momentum[k], reference.momentum[k], 1e-5) << k;
        for (std::size_t k = 0; k < masters.size(); ++k)
          ASSERT_NEAR(masters[k], reference.master[k], 5e-4) << k;
      }
    }
  }
}

TEST(EngineMuon, ReadsAndRestoresStatesOnAnotherNumberOfRanks) {
  RunOptions alone = muon_run(1), in_three = muon_run(3);
  alone.steps = in_three.first_step = in_three.steps = 5;
  SavedStates saved(alone.model), again(alone.model);
  train_to(saved, alone);
  in_three.restore = [&](Engine& engine) { return saved.restore(engine, 5); };
  train_to(again, in_three);
  EXPECT_TRUE(again == saved);
}

TEST(EngineMuon, PlansTheMemoryOfTheLargestMatrix) {
  RunOptions options = muon_run(1);
  options.config.offload_optimizer.device = OffloadDevice::cpu;
  const auto plan = plan_memory(options.config, options.model, 1, 1).value();
  // 200 x 210 twice, and 200 x 200 twice, in fp32.
  EXPECT_EQ(plan.host_matrix, round_up(ByteCount((200 * 210 + 200 * 200) * 2 * 4), Alignment(256)));
}

}  // namespace
}  // namespace penstock::zero::test
