#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr StateFormat split_formats[] = {StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8};
constexpr AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f};

/// Initial masters, then steps 1 to `steps` with gradients of their own.
std::vector<std::byte> trained(FormatTile& tile, const TileValues& values, std::uint64_t steps,
                               const AdamExecution& execution = {}) {
  tile.initialize(values.master);
  for (std::uint64_t step = 1; step <= steps; ++step) {
    std::vector<float> gradient = values.gradient;
    std::rotate(gradient.begin(),
                gradient.begin() + static_cast<std::ptrdiff_t>(gradient.size() * (step - 1) / steps),
                gradient.end());
    tile.set_gradient(gradient);
    EXPECT_TRUE(adam_step(config, step, 0.5f, tile.tile(), execution).has_value());
  }
  return tile.bytes();
}

/// Gradients with zeros, subnormals and extremes among them; all finite.
TileValues mixed_values(std::size_t count) {
  TileValues values = random_values(count, 21);
  const float specials[] = {0.0f, -0.0f, 1e-45f, -1e-40f, 1e18f, -1e-7f, 65504.0f, 1e-20f};
  for (std::size_t i = 0; i < count; i += 3) values.gradient[i] = specials[i / 3 % std::size(specials)];
  return values;
}

/// The formats whose masters contain the parameter.
class SharingFormats : public testing::TestWithParam<TileKind> {};

TEST_P(SharingFormats, GiveTheSameBitsOnEveryInstructionSetForEverySizeAndDtype) {
  for (const std::size_t count :
       std::initializer_list<std::size_t>{0, 1, 7, 63, 64, 65, 255, 256, 257, 4099, 16383, 16384, 16385}) {
    const TileValues values = mixed_values(count);
    for (const DType gradient : {DType::fp32, DType::bf16, DType::fp16}) {
      FormatTile tile(GetParam(), count, gradient, 1u << 20);
      const auto wanted = trained(tile, values, 3, {.isa = Isa::scalar});
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        ASSERT_EQ(trained(tile, values, 3, {.isa = isa}), wanted)
            << to_string(isa) << ", " << count << " elements, " << to_string(gradient);
      }
    }
  }
}

TEST_P(SharingFormats, GiveTheSameBitsForEveryThreadCountAndTileSize) {
  constexpr std::size_t count = 5 * 16384 + 77;
  const TileValues values = mixed_values(count);
  FormatTile tile(GetParam(), count, DType::bf16, 99);
  const auto wanted = trained(tile, values, 2);
  parallel::Workers workers = parallel::Workers::create({.threads = 3}).value();
  EXPECT_EQ(trained(tile, values, 2, {.workers = &workers}), wanted);

  tile.initialize(values.master);
  for (std::uint64_t step = 1; step <= 2; ++step) {
    std::vector<float> gradient = values.gradient;
    std::rotate(gradient.begin(), gradient.begin() + static_cast<std::ptrdiff_t>(count * (step - 1) / 2),
                gradient.end());
    tile.set_gradient(gradient);
    for (std::size_t first = 0; first < count; first += 2 * 16384) {
      ASSERT_TRUE(
          adam_step(config, step, 0.5f, tile.cut(first, std::min<std::size_t>(2 * 16384, count - first))));
    }
  }
  EXPECT_EQ(tile.bytes(), wanted);
}

TEST_P(SharingFormats, NameTheFirstBlockThatIsNoLongerFinite) {
  constexpr std::size_t count = 3 * 16384 + 3;
  constexpr float infinity = std::numeric_limits<float>::infinity();
  // Of a huge gradient only the second moment overflows.
  for (const auto& [gradient, master] : std::initializer_list<std::pair<float, float>>{
           {infinity, 1.0f}, {-NAN, 1.0f}, {1e30f, 1.0f}, {1.0f, -infinity}, {1.0f, NAN}}) {
    for (const std::size_t at : std::initializer_list<std::size_t>{0, 16384 + 255, count - 1}) {
      for (const Isa isa : isas) {
        if (!is_runnable(isa)) continue;
        TileValues values = random_values(count, 2);
        values.gradient[at] = gradient;
        values.master[at] = master;
        FormatTile tile(GetParam(), count);
        tile.initialize(values.master);
        tile.set_gradient(values.gradient);
        EXPECT_EQ(adam_step(config, 1, 1.0f, tile.tile(), {.isa = isa}).value().first_non_finite_block,
                  at / 16384)
            << to_string(isa) << " " << gradient << " " << master << " at " << at;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SharingFormats,
                         testing::Values(TileKind{StateFormat::split}, TileKind{StateFormat::split_bf16},
                                         TileKind{StateFormat::split_q8}, narrow_kinds[0], narrow_kinds[1],
                                         narrow_kinds[2]),
                         [](const auto& tested) { return tested.param.name(); });

class SplitFormats : public testing::TestWithParam<StateFormat> {};

TEST_P(SplitFormats, StartFromTheGivenMastersAndGiveThemBack) {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 255, 16384, 40001}) {
    const TileValues values = random_values(count, count);
    FormatTile tile(GetParam(), count);
    tile.initialize(values.master);

    std::vector<float> read(count);
    ASSERT_TRUE(read_states(tile.tile(), StateKind::master, ElementCount(0), read).has_value());
    EXPECT_EQ(read, values.master);
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(tile.master(i), values.master[i]);
      ASSERT_EQ(tile.m(i), 0.0);
      ASSERT_LE(tile.v(i), 0x1p-123);  // split_q8 has no zero
    }
    if (count < 20000) continue;
    std::vector<float> part(20000);
    ASSERT_TRUE(read_states(tile.tile(), StateKind::master, ElementCount(16000), part).has_value());
    EXPECT_TRUE(std::equal(part.begin(), part.end(), values.master.begin() + 16000));
    EXPECT_FALSE(read_states(tile.tile(), StateKind::master, ElementCount(20002), part).has_value());
  }
}

TEST_P(SplitFormats, RefuseAParameterThatCannotBeTheUpperHalf) {
  FormatTile memory(GetParam(), 100);
  for (const DType dtype : {DType::fp16, DType::fp32}) {
    std::vector<float> parameters(dtype == DType::fp16 ? 50 : 100);
    AdamTile tile = memory.tile();
    tile.parameter = HostSpan(std::span(parameters));
    tile.parameter_dtype = dtype;
    const auto refused = adam_step(config, 1, 1.0f, tile);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("parameter_dtype"), std::string::npos)
        << refused.error().message();
  }
}

INSTANTIATE_TEST_SUITE_P(Every, SplitFormats, testing::ValuesIn(split_formats),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

class LossyFormats : public testing::TestWithParam<StateFormat> {};

// One step from zero moments makes m and v known exactly: 0.1 g and 0.001 g², in fp32.
TEST_P(LossyFormats, StoreOneOfTheTwoNeighboursWithoutBias) {
  constexpr std::size_t count = 200'000;
  TileValues values = random_values(count, 5);
  for (std::size_t i = 0; i < count; i += 7) values.gradient[i] = 0;
  FormatTile tile(GetParam(), count);
  tile.initialize(values.master);
  tile.set_gradient(values.gradient);
  ASSERT_TRUE(adam_step({}, 1, 1.0f, tile.tile()).has_value());

  double bias_m = 0, bias_v = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const float g = values.gradient[i], m = g * static_cast<float>(1.0 - double{0.9f});
    double v = g * g * static_cast<float>(1.0 - double{0.999f});
    if (GetParam() == StateFormat::split_q8)
      v = std::max(v, std::ldexp(1.0, tile.lowest_exponent(i, 1)));  // it has nothing smaller
    const double unit_m = tile.spacing(i, 0, std::abs(m)), unit_v = tile.spacing(i, 1, v);
    const double off_m = (tile.m(i) - m) / unit_m, off_v = (tile.v(i) - v) / unit_v;
    ASSERT_LT(std::abs(off_m), 1.0) << i << " " << m;
    ASSERT_LT(std::abs(off_v), 1.0) << i << " " << v;
    bias_m += off_m * (m < 0 ? -1 : 1);
    bias_v += off_v;
  }
  // Each is uniform in variance: 1/6 at most; five standard deviations of the mean.
  const double bound = 5 * std::sqrt(1.0 / 6 / count);
  EXPECT_LT(std::abs(bias_m / count), bound);
  EXPECT_LT(std::abs(bias_v / count), bound);
}

// With rounding to nearest, v would stay at more than twice its correct value or never decay.
TEST_P(LossyFormats, LetTheSecondMomentFollowItsMeanAtBeta2Of0999) {
  constexpr std::size_t count = 4096;
  constexpr std::uint64_t steps = 4000;
  FormatTile tile(GetParam(), count);
  TileMemory reference(count, DType::fp32, DType::fp32);
  TileValues values = random_values(count, 6);
  std::fill(values.m.begin(), values.m.end(), 0.0f);
  std::fill(values.v.begin(), values.v.end(), 0.0f);
  reference.set(values);
  tile.initialize(values.master);
  SeededRandom random(7);
  const auto compare = [&](double tolerance) {
    double mine = 0, wanted = 0, square = 0;
    for (std::size_t i = 0; i < count; ++i) {
      mine += tile.v(i);
      wanted += reference.v(i);
      square += std::pow(tile.v(i) / reference.v(i) - 1, 2);
    }
    EXPECT_NEAR(mine / wanted, 1.0, tolerance);
    RecordProperty("relative_deviation_of_v", std::to_string(std::sqrt(square / count)));
  };
  for (std::uint64_t step = 1; step <= steps; ++step) {
    for (float& g : values.gradient) g = step <= steps / 2 ? random.symmetric() : 0.0f;
    reference.set_gradient(values.gradient);
    tile.set_gradient(values.gradient);
    ASSERT_TRUE(adam_step({}, step, 1.0f, reference.tile()).has_value());
    ASSERT_TRUE(adam_step({}, step, 1.0f, tile.tile()).has_value());
    if (step == steps / 2) compare(0.02);
  }
  compare(0.02);  // after as many steps without any gradient: 0.135 of what it was
}

INSTANTIATE_TEST_SUITE_P(Every, LossyFormats,
                         testing::Values(StateFormat::split_bf16, StateFormat::split_q8,
                                         StateFormat::moments_bf16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

TEST(StateFormat, SizesTilesAndBlocks) {
  EXPECT_EQ(tile_bytes(StateFormat::fp32, ElementCount(0)).value(), 0_B);
  EXPECT_EQ(tile_bytes(StateFormat::fp32, ElementCount(20000)).value(), ByteCount(240000));
  EXPECT_EQ(block_bytes(StateFormat::fp32, block_elements).value(), 192_KiB);
  EXPECT_FALSE(block_bytes(StateFormat::fp32, ElementCount(16385)).has_value());
  EXPECT_FALSE(tile_bytes(StateFormat::fp32, ElementCount(~0ull / 12 + 1)).has_value());
  const auto bytes = [](StateFormat format, std::uint64_t n) {
    return tile_bytes(format, ElementCount(n)).value().value();
  };
  EXPECT_EQ(bytes(StateFormat::split, 20000), 200'000u);
  EXPECT_EQ(bytes(StateFormat::split_bf16, 20000), 120'000u);
  EXPECT_EQ(bytes(StateFormat::moments, 20000), 160'000u);
  EXPECT_EQ(bytes(StateFormat::moments_bf16, 20000), 80'000u);
  EXPECT_EQ(bytes(StateFormat::split_q8, 16384), 65'536u + 8192 + 128);
  EXPECT_EQ(bytes(StateFormat::split_q8, 16384 + 257), 65'536u + 8192 + 128 + 4 * 257 + 129 + 4);
  EXPECT_EQ(bytes(StateFormat::split_q8, 0), 0u);
  EXPECT_FALSE(tile_bytes(static_cast<StateFormat>(6), ElementCount(1)).has_value());
  EXPECT_EQ(default_tile_elements(StateFormat::fp32), ElementCount(262'144));
  EXPECT_EQ(default_tile_elements(StateFormat::split_bf16), ElementCount(524'288));
}

TEST(StateFormat, AlignsATileToItsWidestState) {
  EXPECT_EQ(state_alignment(StateFormat::fp32), Alignment(4));
  EXPECT_EQ(state_alignment(StateFormat::split), Alignment(4));
  EXPECT_EQ(state_alignment(StateFormat::split_bf16), Alignment(2));
  EXPECT_EQ(state_alignment(StateFormat::split_q8), Alignment(2));
  EXPECT_EQ(state_alignment(StateFormat::moments), Alignment(4));
  EXPECT_EQ(state_alignment(StateFormat::moments_bf16), Alignment(2));
}

}  // namespace
}  // namespace penstock::test
