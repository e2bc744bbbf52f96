// What tiles of each optimizer store: bytes, and the states that go in and come out.

#include "one_moment_tile.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <limits>
#include <string>
#include <vector>

namespace penstock::test {
namespace {

TEST(TileLayout, OfAFormatAloneIsAdams) {
  EXPECT_EQ(TileLayout(StateFormat::split), TileLayout(StateFormat::split, Optimizer::adam));
  EXPECT_EQ(OptimizerTile{}.layout(), TileLayout());
}

TEST(TileLayout, TellsTheBytesOfItsStates) {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 16383, 16384, 16385, 1'000'003}) {
    for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
      EXPECT_EQ(tile_bytes({StateFormat::fp32, optimizer}, ElementCount(count)), ByteCount(8 * count));
      EXPECT_EQ(tile_bytes({StateFormat::moments, optimizer}, ElementCount(count)), ByteCount(4 * count));
    }
    EXPECT_EQ(tile_bytes(StateFormat::fp32, ElementCount(count)), ByteCount(12 * count));
    EXPECT_EQ(tile_bytes(StateFormat::moments, ElementCount(count)), ByteCount(8 * count));
  }
  EXPECT_EQ(block_bytes({StateFormat::fp32, Optimizer::lion}, block_elements), 128_KiB);
  EXPECT_EQ(default_tile_elements({StateFormat::fp32, Optimizer::lion}), ElementCount(24 * 16384));
  EXPECT_EQ(default_tile_elements({StateFormat::moments, Optimizer::adagrad}), ElementCount(48 * 16384));
  EXPECT_FALSE(tile_bytes({StateFormat::fp32, Optimizer::lion}, ElementCount(std::uint64_t{1} << 61)));
}

TEST(TileLayout, OfAFormatThatTheOptimizerDoesNotTakeHasNoBytes) {
  for (const Optimizer optimizer : {Optimizer::lion, Optimizer::adagrad}) {
    for (const StateFormat format : {StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8}) {
      const auto bytes = tile_bytes({format, optimizer}, ElementCount(1));
      ASSERT_FALSE(bytes.has_value());
      EXPECT_EQ(bytes.error().code(), ErrorCode::unsupported);
      for (const std::string_view said : {to_string(optimizer), to_string(format)}) {
        EXPECT_NE(bytes.error().message().find(said), std::string::npos) << bytes.error().message();
      }
      EXPECT_EQ(default_tile_elements({format, optimizer}), block_elements);
    }
  }
}

TEST(TileLayout, NamesTheStatesThatAnOptimizerKeeps) {
  const auto states = [](Optimizer optimizer) {
    const auto kept = states_of(optimizer);
    for (const StateKind kind : all_states) {
      EXPECT_EQ(keeps(optimizer, kind), std::find(kept.begin(), kept.end(), kind) != kept.end());
    }
    return std::vector(kept.begin(), kept.end());
  };
  using Kinds = std::vector<StateKind>;
  EXPECT_EQ(states(Optimizer::adam), Kinds(all_states.begin(), all_states.end()));
  EXPECT_EQ(states(Optimizer::lion), (Kinds{StateKind::master, StateKind::first_moment}));
  EXPECT_EQ(states(Optimizer::adagrad), (Kinds{StateKind::master, StateKind::second_moment}));
}

class OneMomentStates : public testing::TestWithParam<OneMomentKind> {
 protected:
  [[nodiscard]] static StateKind kept() {
    return GetParam().optimizer == Optimizer::lion ? StateKind::first_moment : StateKind::second_moment;
  }
  [[nodiscard]] static StateKind missing() {
    return GetParam().optimizer == Optimizer::lion ? StateKind::second_moment : StateKind::first_moment;
  }
  /// `moment` in the place of the state that the optimizer keeps.
  [[nodiscard]] static TileStates states(std::span<const float> master, std::span<const float> moment) {
    if (GetParam().optimizer == Optimizer::lion) return {master, moment, {}};
    return {master, {}, moment};
  }
  static std::vector<float> read(const OneMomentTile& tile, StateKind kind) {
    std::vector<float> values(tile.tile().elements.value());
    EXPECT_TRUE(read_states(tile.tile(), kind, ElementCount(0), values).has_value());
    return values;
  }
  static void train(OneMomentTile& tile, std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t step = first; step <= last; ++step) {
      ASSERT_TRUE(optimizer_step(one_moment_config(GetParam().optimizer), step, 0.5f, tile.tile()));
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Every, OneMomentStates, testing::ValuesIn(one_moment_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

TEST_P(OneMomentStates, AreInitializedWithMastersAndAMomentOfZero) {
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 129, 16384, 40000}) {
    const TileValues values = random_values(count, count);
    OneMomentTile tile(GetParam(), count);
    tile.set(values);

    ASSERT_TRUE(
        initialize_tile(ConstHostSpan(std::span(values.gradient)), DType::fp32, tile.tile(), &workers));

    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(tile.master(i), rounded_to(GetParam().master(), values.gradient[i]));
      ASSERT_EQ(tile.parameter(i), rounded_to(GetParam().parameter, values.gradient[i]));
      ASSERT_EQ(tile.moment(i), 0.0f);
    }
  }
}

TEST_P(OneMomentStates, AreReadAndRestoredSoThatLaterStepsGiveTheSameResult) {
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 257, 16384, 40001}) {
    OneMomentTile original(GetParam(), count), resumed(GetParam(), count);
    original.set(random_values(count, 100));
    TileValues other = random_values(count, 200);
    other.gradient = random_values(count, 100).gradient;
    resumed.set(other);
    train(original, 1, 3);
    const auto masters = read(original, StateKind::master), moments = read(original, kept());
    for (std::size_t i = 0; i < count; ++i) {
      ASSERT_EQ(masters[i], original.master(i));
      ASSERT_EQ(moments[i], original.moment(i));
    }

    ASSERT_TRUE(restore_tile(states(masters, moments), resumed.tile()).has_value());

    ASSERT_EQ(resumed.bytes(), original.bytes()) << count;
    train(original, 4, 6);
    train(resumed, 4, 6);
    ASSERT_EQ(resumed.bytes(), original.bytes()) << count;
  }
}

TEST_P(OneMomentStates, AreReadInParts) {
  constexpr std::size_t count = 20001;
  OneMomentTile tile(GetParam(), count);
  tile.set(random_values(count, 1));
  std::vector<float> part(700);
  ASSERT_TRUE(read_states(tile.tile(), kept(), ElementCount(16000), part).has_value());
  for (std::size_t i = 0; i < part.size(); ++i) ASSERT_EQ(part[i], tile.moment(16000 + i));
}

TEST_P(OneMomentStates, ThatTheOptimizerDoesNotKeepAreRefusedByName) {
  constexpr std::size_t count = 300;
  OneMomentTile tile(GetParam(), count);
  tile.set(random_values(count, 1));
  const auto before = tile.bytes();
  std::vector<float> values(count, 1.0f);
  const auto names_both = [](const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
    for (const std::string_view said : {to_string(missing()), to_string(GetParam().optimizer)}) {
      EXPECT_NE(error.message().find(said), std::string::npos) << error.message();
    }
  };

  const auto read = read_states(tile.tile(), missing(), ElementCount(0), values);
  const auto restored = restore_tile({values, values, values}, tile.tile());

  ASSERT_FALSE(read.has_value());
  names_both(read.error());
  ASSERT_FALSE(restored.has_value());
  names_both(restored.error());
  EXPECT_EQ(tile.bytes(), before);
}

TEST_P(OneMomentStates, ThatAreInvalidAreRefusedAndChangeNothing) {
  constexpr std::size_t count = 300;
  OneMomentTile tile(GetParam(), count);
  tile.set(random_values(count, 1));
  const auto before = tile.bytes();
  const std::vector<float> good(count, 1.0f);
  const std::string object = std::string(to_string(kept())) + "[299]";
  const auto refused = [&](std::span<const float> master, std::span<const float> moment,
                           const std::string& named) {
    const auto result = restore_tile(states(master, moment), tile.tile());
    ASSERT_FALSE(result.has_value());
    EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(result.error().message().find(named), std::string::npos) << result.error().message();
    EXPECT_EQ(tile.bytes(), before);
  };
  std::vector<float> bad = good;
  for (const float value :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN(), -1.0f}) {
    bad[299] = value;
    if (value != -1.0f || kept() == StateKind::second_moment) refused(good, bad, object);
  }
  refused(good, std::span(good).first(299), std::string(to_string(kept())));
  refused(good, {}, std::string(to_string(kept())));
  refused(std::span(good).first(299), good, "master");
}

}  // namespace
}  // namespace penstock::test
