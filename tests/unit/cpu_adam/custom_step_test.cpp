// Tiles that a function updates: which blocks it gets, and what an error leaves.
#include "cpu_adam/custom_step.hpp"

#include <penstock/cpu_adam/optimizers.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace penstock::cpu_adam {
namespace {

constexpr std::size_t block = block_elements.value();

/// A tile of three blocks, with masters and gradients of 1, 2, 3, …
struct Memory {
  static constexpr std::size_t count = 2 * block + 100;
  explicit Memory(Optimizer of, StateFormat in = StateFormat::fp32)
      : optimizer(of),
        format(in),
        state((*tile_bytes({in, of}, ElementCount(count))).value() / sizeof(float)) {
    std::iota(gradient.begin(), gradient.end(), 1.0f);
    std::vector<float> masters(count);
    std::iota(masters.begin(), masters.end(), 1.0f);
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(std::as_const(masters))), DType::fp32, tile()));
  }
  [[nodiscard]] OptimizerTile tile() {
    return {.state = HostSpan(std::span(state)),
            .gradient = ConstHostSpan(std::span(std::as_const(gradient))),
            .parameter = HostSpan(std::span(parameter)),
            .elements = ElementCount(count),
            .gradient_dtype = DType::fp32,
            .parameter_dtype = DType::fp32,
            .format = format,
            .optimizer = optimizer};
  }

  Optimizer optimizer;
  StateFormat format;
  std::vector<float> state, gradient = std::vector<float>(count), parameter = std::vector<float>(count);
};

/// Records the blocks that an update has passed on.
class Observer final : public BlockObserver {
 public:
  bool before_update(std::size_t number, ConstHostSpan) noexcept override {
    return before.insert(number), number != rejected;
  }
  void after_update(std::size_t number, ConstHostSpan) noexcept override { after.insert(number); }

  std::set<std::size_t> before, after;
  std::size_t rejected = 99;
};

TEST(CustomStep, PassesBlocksOfAllStatesAndRoundsTheParameter) {
  for (const Optimizer optimizer :
       {Optimizer::custom_no_moments, Optimizer::custom_one_moment, Optimizer::custom_two_moments}) {
    for (const StateFormat format : {StateFormat::fp32, StateFormat::moments}) {
      if (optimizer == Optimizer::custom_no_moments && format == StateFormat::moments) continue;
      Memory memory(optimizer, format);
      const auto update = [&](const Fp32Block& part) -> Result<void> {
        EXPECT_EQ(part.first_moment.empty(), !keeps(optimizer, StateKind::first_moment));
        EXPECT_EQ(part.second_moment.empty(), !keeps(optimizer, StateKind::second_moment));
        for (std::size_t i = 0; i < part.gradient.size(); ++i) {
          part.master[i] -= part.gradient[i];
          if (!part.first_moment.empty()) part.first_moment[i] = part.gradient[i];
          if (!part.second_moment.empty()) part.second_moment[i] = -part.gradient[i];
        }
        return ok();
      };

      const auto outcome = custom_step(update, 0.5f, memory.tile(), {});

      ASSERT_TRUE(outcome) << outcome.error().message();
      EXPECT_EQ(outcome->blocks_updated, 3u);
      for (const StateKind kind : states_of(optimizer)) {
        std::vector<float> values(Memory::count);
        ASSERT_TRUE(read_states(memory.tile(), kind, {}, values));
        const float sign = kind == StateKind::second_moment ? -0.5f : 0.5f;
        for (std::size_t i = 0; i < values.size(); ++i)
          ASSERT_EQ(values[i], sign * static_cast<float>(i + 1)) << i;
      }
      EXPECT_EQ(memory.parameter.back(), static_cast<float>(Memory::count) / 2);
    }
  }
}

TEST(CustomStep, EndsBetweenTwoBlocksAfterAnError) {
  Memory memory(Optimizer::custom_one_moment);
  Observer observer;
  std::vector<std::uint64_t> passed;
  const auto update = [&](const Fp32Block& part) -> Result<void> {
    passed.push_back(part.first.value());
    if (part.first == block_elements) return Error::unsupported("my function").reason("of its own");
    return ok();
  };

  const auto outcome = custom_step(update, 1, memory.tile(), {.observer = &observer});

  ASSERT_FALSE(outcome);
  EXPECT_NE(outcome.error().message().find("of its own"), std::string::npos);
  EXPECT_EQ(passed, (std::vector<std::uint64_t>{0, block}));
  EXPECT_EQ(observer.after, std::set<std::size_t>{0});
}

TEST(CustomStep, DoesNotPassABlockThatTheObserverRejects) {
  Memory memory(Optimizer::custom_one_moment);
  Observer observer;
  observer.rejected = 1;
  const auto update = [&](const Fp32Block& part) -> Result<void> {
    EXPECT_NE(part.first, block_elements);
    return ok();
  };

  const auto outcome = custom_step(update, 1, memory.tile(), {.observer = &observer});

  ASSERT_TRUE(outcome);
  EXPECT_EQ(outcome->first_rejected_block, 1u);
  EXPECT_EQ(outcome->blocks_updated, 2u);
}

TEST(CustomStep, RefusesFormulasAnd16BitMasters) {
  const auto update = [](const Fp32Block&) { return ok(); };
  Memory adam(Optimizer::adam);
  const auto formula = custom_step(update, 1, adam.tile(), {});
  ASSERT_FALSE(formula);
  EXPECT_NE(formula.error().message().find("adam"), std::string::npos) << formula.error().message();
  Memory custom(Optimizer::custom_two_moments);
  EXPECT_FALSE(optimizer_step(AdamConfig{}, 1, 1, custom.tile()));

  Memory memory(Optimizer::custom_one_moment, StateFormat::moments);
  OptimizerTile narrow = memory.tile();
  narrow.parameter_dtype = DType::bf16;
  narrow.parameter = narrow.parameter.subspan({}, ByteCount(2 * Memory::count));
  const auto masters = custom_step(update, 1, narrow, {});
  ASSERT_FALSE(masters);
  EXPECT_EQ(masters.error().code(), ErrorCode::unsupported);
}

TEST(CustomStep, KeepsTheSignOfRestoredMoments) {
  Memory memory(Optimizer::custom_two_moments);
  std::vector<float> values(Memory::count, -2.5f);
  ASSERT_TRUE(restore_tile({values, values, values}, memory.tile()));
  for (const StateKind kind : all_states) {
    std::vector<float> read(Memory::count);
    ASSERT_TRUE(read_states(memory.tile(), kind, {}, read));
    EXPECT_EQ(read, values);
  }
  memory.optimizer = Optimizer::adam;
  EXPECT_FALSE(restore_tile({values, values, values}, memory.tile()));
}

TEST(CustomStep, HasNoTileOfNothing) {
  EXPECT_EQ(tile_bytes({StateFormat::fp32, Optimizer::custom_no_moments}, ElementCount(10)), ByteCount(40));
  EXPECT_EQ(tile_bytes({StateFormat::fp32, Optimizer::custom_two_moments}, ElementCount(10)), ByteCount(120));
  const TileLayout nothing(StateFormat::moments, Optimizer::custom_no_moments);
  const auto bytes = tile_bytes(nothing, ElementCount(10));
  ASSERT_FALSE(bytes);
  EXPECT_EQ(bytes.error().code(), ErrorCode::unsupported);
  EXPECT_EQ(default_tile_elements(nothing), block_elements);
}

}  // namespace
}  // namespace penstock::cpu_adam
