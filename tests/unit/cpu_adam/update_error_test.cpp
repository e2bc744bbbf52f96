#include "update_error.hpp"

#include <gtest/gtest.h>
#include <cmath>

namespace penstock::test {
namespace {

UpdateError error_of_q8(const GradientSeries& series) {
  constexpr TileKind q8[] = {{StateFormat::split_q8}};
  return update_errors(series, q8, 2048, 2000).front();
}

// Two standard deviations of the measured travel are 0.05 %.
TEST(UpdateErrorOfSplitQ8, IsSmallAndWithoutBiasOnOrdinaryGradients) {
  const UpdateError error = error_of_q8(noise_with_drift());

  EXPECT_LE(error.rms, 0.04);
  EXPECT_LE(std::abs(error.travel_bias), 0.002);
}

// With 32 octaves of v, elements 50,000 times smaller than the largest of their run moved 7 % too little, those 100,000
// times smaller 48 %.
TEST(UpdateErrorOfSplitQ8, DoesNotStallElementsFarBelowTheLargestOfTheirRun) {
  for (const float factor : {5e4f, 1e6f}) {
    const UpdateError error = error_of_q8(noise_beside_outliers(factor, "outliers"));

    EXPECT_LE(error.rms, factor < 1e6f ? 0.12 : 0.5) << factor;
    EXPECT_LE(std::abs(error.travel_bias), 0.015) << factor;
  }
}

// Most of an update of a 16-bit master is rounding, which averages out: the weights travel as far as in double. Two
// standard deviations of the measured travel are 0.3 %. DeepSpeed's rounding to nearest would hold most of them back.
TEST(UpdateErrorOfNarrowMasters, IsWithoutBias) {
  const auto errors = update_errors(noise_with_drift(), narrow_kinds, 2048, 2000);
  for (std::size_t kind = 0; kind < errors.size(); ++kind) {
    EXPECT_LE(std::abs(errors[kind].travel_bias), 0.005) << narrow_kinds[kind].name();
  }
}

}  // namespace
}  // namespace penstock::test
