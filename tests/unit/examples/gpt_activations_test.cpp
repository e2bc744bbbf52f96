#include "gpt/activations.hpp"

#include <gtest/gtest.h>

namespace gpt {
namespace {

constexpr std::uint32_t layers = 20, width = 2048;

double bytes_of(std::uint32_t context, bool checkpoint = false) {
  const ModelConfig config{.layers = layers, .width = width, .heads = 16, .context = context};
  return static_cast<double>(Activations::size(config, {.sequences = 1, .checkpoint = checkpoint}).value());
}

TEST(Activations, GrowNoFasterThanTheContext) {
  EXPECT_NEAR(bytes_of(16384) / bytes_of(1024), 16, 0.01);
  EXPECT_NEAR(bytes_of(1024) / bytes_of(512), 2, 0.01);
}

TEST(Activations, AreThoseOfOneBlockAndTheInputsOfAllWithCheckpoints) {
  // A block keeps 15 rows of the model's width, statistics aside.
  const double block = 15.0 * width * 4 * 1024;

  EXPECT_NEAR((bytes_of(1024) - bytes_of(1024, true)) / block, layers - 1, 0.1);
  EXPECT_LT(bytes_of(1024, true), 0.17 * bytes_of(1024));
}

TEST(Activations, ShareWhatOneVisitUsesBetweenMicroBatchesUnlessBlocksAreCut) {
  ModelConfig config{.layers = 3, .width = 256, .heads = 4, .context = 128};
  const auto size_of = [&](std::uint32_t micro_batches, bool checkpoint) {
    return static_cast<double>(
        Activations::size(config, {.checkpoint = checkpoint, .micro_batches = micro_batches}).value());
  };
  const double row = 4.0 * 128;  // bytes of an fp32 number of each row
  // Of the inputs of three blocks and of the head, the last norm, logits, and the gradient of the residual stream.
  const double kept = (3 + 1 + 1 + 1) * 256 * row + 256 * row;

  EXPECT_NEAR((size_of(5, true) - size_of(1, true)) / 4, kept, 0.02 * kept);

  config.unit_elements_max = penstock::ElementCount(100'000);
  EXPECT_EQ(size_of(5, true), 5 * size_of(1, true));
}

}  // namespace
}  // namespace gpt
