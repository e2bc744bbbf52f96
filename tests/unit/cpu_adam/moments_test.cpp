// The format `moments`: the fp32 parameter is the master.

#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

class Moments : public testing::TestWithParam<DType> {};

TEST_P(Moments, GiveTheBitsOfFp32InWholeRuns) {
  for (const std::size_t count : std::initializer_list<std::size_t>{1, 31, 64, 16384 + 77}) {
    for (const AdamDecay decay : {AdamDecay::decoupled, AdamDecay::l2}) {
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        SCOPED_TRACE(std::string(to_string(isa)) + ", " + std::to_string(count));
        TileMemory reference(count, GetParam(), DType::fp32);
        FormatTile tile(StateFormat::moments, count, GetParam());
        TileValues values = random_values(count, 7);
        ASSERT_TRUE(initialize_tile(ConstHostSpan(std::span(values.master)), DType::fp32, reference.tile()));
        tile.initialize(values.master);
        for (std::uint64_t step = 1; step <= 4; ++step) {
          values = random_values(count, 10 + step);
          reference.set_gradient(values.gradient);
          tile.set_gradient(values.gradient);
          const AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f, .decay_mode = decay};
          for (const AdamTile& both : {reference.tile(), tile.tile()}) {
            ASSERT_TRUE(adam_step(config, step, 0.5f, both, {.isa = isa, .nontemporal_parameter = true}));
          }
        }
        for (std::size_t i = 0; i < count; ++i) {
          ASSERT_EQ(tile.master(i), reference.master(i)) << i;
          ASSERT_EQ(tile.m(i), reference.m(i)) << i;
          ASSERT_EQ(tile.v(i), reference.v(i)) << i;
        }
      }
    }
  }
}
INSTANTIATE_TEST_SUITE_P(Gradients, Moments, testing::Values(DType::fp32, DType::bf16, DType::fp16),
                         [](const auto& dtype) { return std::string(to_string(dtype.param)); });

TEST(MomentsTile, TakesBf16ParametersAloneWithMomentsInBf16) {
  for (const DType other : {DType::fp32, DType::fp16}) {
    FormatTile tile(TileKind{StateFormat::moments_bf16, other}, 64);
    const auto refused = adam_step({}, 1, 1.0f, tile.tile());
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("parameter_dtype"), std::string::npos);
  }
}

TEST(MomentsTile, ReportsAMasterThatBecomesInfinite) {
  FormatTile tile(StateFormat::moments, 3);
  tile.initialize({1.0f, 3e38f, 1.0f});
  tile.set_gradient({1.0f, -1.0f, 1.0f});
  const auto outcome = adam_step({.learning_rate = 3e38f}, 1, 1.0f, tile.tile());
  ASSERT_TRUE(outcome.has_value());
  EXPECT_EQ(outcome->first_non_finite_block, 0u);
}

}  // namespace
}  // namespace penstock::test
