// The order in which a training uses host memory: gpt_train --uses.
#include "gpt_train_fixture.hpp"

#include "gpt/rank_trainer.hpp"
#include "zero/layout/step_trace.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/zero/config/config_file.hpp>
#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <cstddef>
#include <string>

namespace gpt::test {
namespace {

using namespace penstock;

TEST_F(GptTrain, WritesTheUsesOfItsSecondStep) {
  const std::string file = (directory_.path() / "uses").string();
  const Outcome outcome = train(arguments() + " --uses " + file);

  EXPECT_EQ(outcome.status, 0) << outcome.output;
  const auto trace = swap::load_trace(file);
  ASSERT_TRUE(trace) << trace.error().message();
  std::size_t tiles = 0, updated = 0;
  for (const auto& tensor : trace->tensors) tiles += tensor.purpose == tiers::Purpose::optimizer_tile;
  for (const auto& use : trace->uses)
    updated += trace->tensors[use.tensor].purpose == tiers::Purpose::optimizer_tile;
  EXPECT_GT(tiles, 0u);
  EXPECT_EQ(updated, tiles) << "one update";
  expect_refused(train(arguments() + " --uses /nonexistent/uses"), 2, {"/nonexistent/uses"});
  expect_refused(train(arguments() + " --uses " + file + " --json " + file), 2, {"--uses"});
}

/// The second step's uses of rank 0 of a training of two ranks, as they are derived from its layout.
swap::AccessTrace derived(const std::string& config_file, bool by_layer) {
  const ModelConfig model{.layers = 1, .width = 64, .heads = 2, .context = 32};
  const zero::ModelLayout layout = layout_of(model, {.ranks = 2, .layer_by_layer = by_layer});
  const auto file = zero::ConfigFile::read(config_file, {.world_size = 2}).value();
  const zero::MemoryPlan plan = plan_memory(file.config, layout, 2, 2, tiers::DeviceMemory::host).value();
  return derive_trace(file.config, layout, plan,
                      {.micro_batches = by_layer ? 1 : file.config.gradient_accumulation_steps})
      .value();
}

TEST_F(GptTrain, UsesWhatIsDerivedInEitherOrderOfAccumulation) {
  const std::string uses = (directory_.path() / "uses").string();
  const std::string run = arguments() + " --ranks 2 --uses " + uses;
  for (const bool by_layer : {false, true}) {
    const Outcome outcome = train(run + (by_layer ? " --accumulate-by-layer" : ""));
    ASSERT_EQ(outcome.status, 0) << outcome.output;
    const swap::AccessTrace recorded = swap::load_trace(uses).value(),
                            expected = derived((directory_.path() / "config.json").string(), by_layer);
    const auto difference = swap::first_difference(expected, recorded);
    EXPECT_FALSE(difference) << (by_layer ? "by layer: " : "by micro-batch: ") << to_string(*difference);
    EXPECT_EQ(expected.tensors, recorded.tensors);
  }
}

}  // namespace
}  // namespace gpt::test
