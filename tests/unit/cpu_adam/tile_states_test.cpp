#include "format_tile.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <bit>
#include <limits>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr TileKind kinds[] = {{StateFormat::fp32},
                              {StateFormat::split},
                              {StateFormat::split_bf16},
                              {StateFormat::split_q8},
                              {StateFormat::moments, DType::fp32},
                              narrow_kinds[0],
                              narrow_kinds[1],
                              narrow_kinds[2]};
constexpr AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f};

struct States {
  std::vector<float> master, first_moment, second_moment;

  explicit States(std::size_t count) : master(count), first_moment(count), second_moment(count) {}
  [[nodiscard]] AdamStates view() const { return {master, first_moment, second_moment}; }
  bool operator==(const States&) const = default;
};

States states_of(const FormatTile& tile, std::size_t count) {
  States states(count);
  for (const auto& [kind, values] : {std::pair(StateKind::master, &states.master),
                                     std::pair(StateKind::first_moment, &states.first_moment),
                                     std::pair(StateKind::second_moment, &states.second_moment)}) {
    EXPECT_TRUE(read_states(tile.tile(), kind, ElementCount(0), *values).has_value());
  }
  return states;
}

void train(FormatTile& tile, std::size_t count, std::uint64_t first_step, std::uint64_t last_step) {
  for (std::uint64_t step = first_step; step <= last_step; ++step) {
    TileValues values = random_values(count, step);
    for (std::size_t i = 0; i < count; i += 5) values.gradient[i] *= 1e-6f;
    tile.set_gradient(values.gradient);
    ASSERT_TRUE(adam_step(config, step, 0.5f, tile.tile()).has_value());
  }
}

class TileStates : public testing::TestWithParam<TileKind> {};

TEST_P(TileStates, AreRestoredSoThatLaterStepsGiveTheSameResult) {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 255, 257, 16384, 40001}) {
    FormatTile original(GetParam(), count), resumed(GetParam(), count);
    original.initialize(random_values(count, 100).master);
    resumed.initialize(random_values(count, 200).master);
    train(original, count, 1, 3);
    train(resumed, count, 1, 2);

    const States saved = states_of(original, count);
    ASSERT_TRUE(restore_tile(saved.view(), resumed.tile()).has_value());
    ASSERT_EQ(states_of(resumed, count), saved) << count;
    train(original, count, 4, 6);
    train(resumed, count, 4, 6);
    ASSERT_EQ(states_of(resumed, count), states_of(original, count)) << count;
    ASSERT_EQ(resumed.parameters(), original.parameters()) << count;
  }
}

TEST_P(TileStates, AreReadInPartsAsTheDocumentedLayoutHasThem) {
  constexpr std::size_t count = 20001;
  FormatTile tile(GetParam(), count);
  tile.initialize(random_values(count, 1).master);
  train(tile, count, 1, 2);
  const States states = states_of(tile, count);
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(states.master[i], tile.master(i)) << i;
    ASSERT_EQ(states.first_moment[i], tile.m(i)) << i;
    ASSERT_EQ(states.second_moment[i], tile.v(i)) << i;
  }
  std::vector<float> part(700);
  ASSERT_TRUE(read_states(tile.tile(), StateKind::second_moment, ElementCount(16000), part).has_value());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), states.second_moment.begin() + 16000));
}

TEST_P(TileStates, AreRestoredWhereEveryMasterIsHalfwayBetweenTwoParameters) {
  constexpr std::size_t count = 600;
  FormatTile tile(GetParam(), count), again(GetParam(), count);
  States states(count);
  for (std::size_t i = 0; i < count; ++i) {
    const auto upper = static_cast<std::uint32_t>(0x3f00 + i);
    states.master[i] = std::bit_cast<float>(upper << 16 | 0x8000u | (i % 2 == 0 ? 0x80000000u : 0u));
    states.first_moment[i] = i % 7 == 0 ? 0.0f : static_cast<float>(i) - 300;  // else fp16 masters overflow
    states.second_moment[i] = i % 7 == 0 ? -0.0f : static_cast<float>(i);
  }
  ASSERT_TRUE(restore_tile(states.view(), tile.tile()).has_value());
  const States read = states_of(tile, count);
  for (std::size_t i = 0; i < count; ++i) ASSERT_EQ(read.master[i], GetParam().stored(states.master[i])) << i;
  EXPECT_TRUE(
      std::all_of(read.second_moment.begin(), read.second_moment.end(), [](float v) { return v >= 0; }));

  again.initialize(std::vector<float>(count, std::bit_cast<float>(0x3f808000u)));  // ties too
  ASSERT_TRUE(restore_tile(read.view(), again.tile()).has_value());
  EXPECT_EQ(states_of(again, count), read);
  train(tile, count, 1, 3);
  train(again, count, 1, 3);
  EXPECT_EQ(states_of(again, count), states_of(tile, count));
}

TEST_P(TileStates, OfAnotherFormatAreRoundedToTheNearestValue) {
  constexpr std::size_t count = 3000;
  FormatTile source(StateFormat::fp32, count), tile(GetParam(), count);
  source.initialize(random_values(count, 1).master);
  train(source, count, 1, 2);
  const States states = states_of(source, count);
  const StateFormat format = GetParam().format;
  ASSERT_TRUE(restore_tile(states.view(), tile.tile()).has_value());
  for (std::size_t i = 0; i < count; ++i) {
    ASSERT_EQ(tile.master(i), GetParam().stored(states.master[i]));
    if (format == StateFormat::fp32 || format == StateFormat::moments || format == StateFormat::split) {
      ASSERT_EQ(tile.m(i), states.first_moment[i]);
      ASSERT_EQ(tile.v(i), states.second_moment[i]);
      continue;
    }
    const double m = states.first_moment[i];
    double v = states.second_moment[i];
    if (format == StateFormat::split_q8) v = std::max(v, std::ldexp(1.0, tile.lowest_exponent(i, 1)));
    ASSERT_LE(std::abs(tile.m(i) - m), 0.5 * tile.spacing(i, 0, std::abs(m))) << i;
    ASSERT_LE(std::abs(tile.v(i) - v), 0.5 * tile.spacing(i, 1, v)) << i;
  }
}

TEST_P(TileStates, ThatAreInvalidAreRefusedAndChangeNothing) {
  constexpr std::size_t count = 300;
  FormatTile tile(GetParam(), count);
  tile.initialize(random_values(count, 1).master);
  train(tile, count, 1, 1);
  const States good = states_of(tile, count);
  const auto before = tile.bytes();
  const auto refused = [&](const States& states, const char* object) {
    const auto result = restore_tile(states.view(), tile.tile());
    ASSERT_FALSE(result) << object;
    EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message().find(object), std::string::npos) << result.error().message();
    EXPECT_EQ(tile.bytes(), before);
  };
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    States bad = good;
    bad.first_moment[299] = value;
    refused(bad, "first_moment[299]");
    bad = good;
    bad.second_moment[0] = value;
    refused(bad, "second_moment[0]");
  }
  States bad = good;
  bad.second_moment[7] = -1e-30f;
  refused(bad, "second_moment[7]");
  for (std::vector<float> States::*member :
       {&States::master, &States::first_moment, &States::second_moment}) {
    bad = good;
    (bad.*member).pop_back();
    refused(bad, "300");
  }
  // Where values may be not finite they still have their sign.
  const auto restored = [&](float second_moment) {
    States other = good;
    other.second_moment[7] = second_moment;
    AdamStates view = other.view();
    view.may_be_non_finite = true;
    return restore_tile(view, tile.tile());
  };
  EXPECT_FALSE(restored(-1.0f));
  EXPECT_FALSE(restored(-std::numeric_limits<float>::infinity()));
  EXPECT_EQ(tile.bytes(), before);
  const bool has_fp32 = GetParam().format == StateFormat::fp32 || GetParam().format == StateFormat::moments;
  EXPECT_EQ(restored(std::numeric_limits<float>::quiet_NaN()).has_value(), has_fp32);
  std::vector<float> values(2);
  EXPECT_FALSE(read_states(tile.tile(), StateKind::first_moment, ElementCount(299), values));
  EXPECT_FALSE(read_states(tile.tile(), StateKind::first_moment, ElementCount(~0ull), values));
}

TEST(TileStatesTest, AreNotTheMemoryOfTheTile) {
  constexpr std::size_t count = 1000;
  FormatTile memory(StateFormat::moments, count);
  memory.initialize(random_values(count, 1).master);
  const States before = states_of(memory, count);
  const AdamTile tile = memory.tile();
  std::vector<float> zeros(count);
  const std::span<float> state = tile.state.as<float>().first(count), parameter = tile.parameter.as<float>();
  for (const std::span<float> own : {state, parameter}) {
    for (const AdamStates& states :
         {AdamStates{own, zeros, zeros}, {zeros, own, zeros}, {zeros, zeros, own}}) {
      const auto refused = restore_tile(states, tile);
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().message().find("overlap"), std::string::npos) << refused.error().message();
    }
  }
  EXPECT_FALSE(read_states(tile, StateKind::first_moment, ElementCount(0), state));
  EXPECT_FALSE(read_states(tile, StateKind::master, ElementCount(0), parameter));
  EXPECT_EQ(states_of(memory, count), before);
  EXPECT_TRUE(read_states(tile, StateKind::first_moment, ElementCount(0), parameter));
  EXPECT_EQ(std::vector<float>(parameter.begin(), parameter.end()), before.first_moment);
}

INSTANTIATE_TEST_SUITE_P(Every, TileStates, testing::ValuesIn(kinds),
                         [](const auto& tested) { return tested.param.name(); });

}  // namespace
}  // namespace penstock::test
