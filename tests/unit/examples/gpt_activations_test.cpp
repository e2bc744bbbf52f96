#include "gpt/activations.hpp"

#include <gtest/gtest.h>

namespace gpt {
namespace {

double bytes_of(std::uint32_t context) {
  return static_cast<double>(
      Activations::size({.layers = 20, .width = 2048, .heads = 16, .context = context}, 1).value());
}

TEST(Activations, GrowNoFasterThanTheContext) {
  EXPECT_NEAR(bytes_of(16384) / bytes_of(1024), 16, 0.01);
  EXPECT_NEAR(bytes_of(1024) / bytes_of(512), 2, 0.01);
}

}  // namespace
}  // namespace gpt
