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

}  // namespace
}  // namespace gpt
