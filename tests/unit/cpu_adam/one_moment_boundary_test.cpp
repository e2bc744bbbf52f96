// Lion and Adagrad: observers, outcomes and arguments.

#include "one_moment_tile.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <limits>
#include <string>

namespace penstock::test {
namespace {

constexpr float inf = std::numeric_limits<float>::infinity();

class OneMomentBoundary : public testing::TestWithParam<OneMomentKind> {};
INSTANTIATE_TEST_SUITE_P(Every, OneMomentBoundary, testing::ValuesIn(one_moment_kinds()),
                         [](const auto& kind) { return kind.param.name(); });

/// Rejects block 1; counts the others.
class RejectingObserver : public BlockObserver {
 public:
  explicit RejectingObserver(const OptimizerTile& tile) : tile_(tile) {}

  bool before_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    const std::size_t begin = block_bytes(tile_.layout(), block_elements).value().value() * block;
    EXPECT_EQ(bytes.data(), tile_.state.data() + begin);
    ++before;
    return block != 1;
  }
  void after_update(std::size_t block, ConstHostSpan) noexcept override {
    EXPECT_NE(block, 1u);
    ++after;
  }
  std::atomic<int> before = 0, after = 0;

 private:
  OptimizerTile tile_;
};

TEST_P(OneMomentBoundary, ABlockThatItsObserverRejectsIsLeftAloneAndReported) {
  constexpr std::size_t count = 3 * 16384 + 5;
  const TileValues values = random_values(count, 2);
  OneMomentTile memory(GetParam(), count), old(GetParam(), count);
  memory.set(values);
  const auto before = memory.bytes();
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  RejectingObserver observer(memory.tile());

  const UpdateOutcome outcome = optimizer_step(one_moment_config(GetParam().optimizer), 1, 1.0f,
                                               memory.tile(), {.workers = &workers, .observer = &observer})
                                    .value();

  EXPECT_EQ(outcome.blocks_updated, 3u);
  EXPECT_EQ(outcome.first_rejected_block, 1u);
  EXPECT_EQ(observer.before, 4);
  EXPECT_EQ(observer.after, 3);
  const auto after = memory.bytes();
  const std::size_t state = memory.tile().state.size().value();
  const std::size_t each = block_bytes(memory.tile().layout(), block_elements).value().value();
  const std::size_t parameters = size_of(GetParam().parameter).value() * 16384;
  const auto same = [&](std::size_t first, std::size_t size) {
    return std::equal(&before[first], &before[first] + size, &after[first]);
  };
  for (std::size_t block = 0; block < 3; ++block) {
    EXPECT_EQ(same(block * each, each), block == 1) << block;
    EXPECT_EQ(same(state + block * parameters, parameters), block == 1) << block;
  }
}

TEST_P(OneMomentBoundary, NamesTheFirstBlockThatIsNoLongerFinite) {
  constexpr std::size_t count = 2 * 16384 + 3;
  struct Fault {
    std::size_t element;
    float master, gradient;
  };
  // In a vector, in the last one of a block, in a scalar tail; NaN, infinity.
  const Fault faults[] = {{0, NAN, 0.0f},         {16383, inf, 0.0f},        {16384 + 7, 1.0f, inf},
                          {3, 1.0f, -inf},        {16384, 1.0f, NAN},        {2 * 16384 + 2, -inf, 0.0f},
                          {2 * 16384, 1.0f, NAN}, {2 * 16384 + 1, 1.0f, inf}};
  for (const Fault& fault : faults) {
    for (const Isa isa : isas) {
      if (!is_runnable(isa)) continue;
      TileValues values = random_values(count, 6);
      values.master[fault.element] = fault.master;
      values.gradient[fault.element] = fault.gradient;
      values.gradient[count - 1] = fault.element == 0 ? inf : 0.0f;
      OneMomentTile memory(GetParam(), count);
      memory.set(values);

      const UpdateOutcome outcome =
          optimizer_step(one_moment_config(GetParam().optimizer), 1, 1.0f, memory.tile(), {.isa = isa})
              .value();

      EXPECT_EQ(outcome.first_non_finite_block, fault.element / 16384) << to_string(isa) << fault.element;
      EXPECT_EQ(outcome.blocks_updated, 3u);
    }
  }
}

// A NaN in the gradient reaches the master although Lion uses its sign alone.
TEST(Lion, DoesNotLoseANaNOfTheGradient) {
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    for (const std::size_t count : std::initializer_list<std::size_t>{1, 64, 200}) {
      OneMomentTile memory({Optimizer::lion, StateFormat::fp32, DType::bf16, DType::bf16}, count);
      TileValues values = random_values(count, 1);
      values.gradient.assign(count, NAN);
      memory.set(values);

      ASSERT_TRUE(optimizer_step(LionConfig{}, 1, 1.0f, memory.tile(), {.isa = isa}).has_value());

      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_TRUE(std::isnan(memory.master(i)) && std::isnan(memory.moment(i)) &&
                    std::isnan(memory.parameter(i)))
            << to_string(isa) << ", element " << i;
      }
    }
  }
}

TEST(Adagrad, ReportsASumOfSquaresThatOverflows) {
  OneMomentTile memory({Optimizer::adagrad, StateFormat::moments, DType::fp32, DType::fp32}, 3);
  memory.set({.master = {1, 1, 1}, .m = {0, 0, 0}, .v = {0, 0, 0}, .gradient = {1.0f, 3e38f, 1.0f}});
  EXPECT_EQ(optimizer_step(AdagradConfig{}, 1, 1.0f, memory.tile()).value().first_non_finite_block, 0u);
}

/// A tile that refused calls must not change.
class OneMomentArguments : public testing::TestWithParam<OneMomentKind> {
 protected:
  OneMomentArguments() : memory(GetParam(), 300) {
    memory.set(random_values(300, 1));
    before = memory.bytes();
  }
  void TearDown() override { EXPECT_EQ(memory.bytes(), before) << "a refused call wrote"; }

  static void refuses(const Result<UpdateOutcome>& outcome, ErrorCode code,
                      std::initializer_list<std::string> named) {
    ASSERT_FALSE(outcome.has_value()) << "accepted";
    EXPECT_EQ(outcome.error().code(), code) << outcome.error().message();
    for (const std::string& name : named) {
      EXPECT_NE(outcome.error().message().find(name), std::string::npos) << outcome.error().message();
    }
  }
  void refuses_config(const Hyperparameters& config, const char* named) const {
    refuses(optimizer_step(config, 1, 1.0f, memory.tile()), ErrorCode::invalid_argument, {named});
    const OptimizerSegment segment{ElementCount(300), config};
    refuses(optimizer_step_in_segments(std::span(&segment, 1), 1, 1.0f, memory.tile()),
            ErrorCode::invalid_argument, {named, "segments[0]"});
  }

  OneMomentTile memory;
  std::vector<std::byte> before;
};
INSTANTIATE_TEST_SUITE_P(
    Every, OneMomentArguments,
    testing::Values(OneMomentKind{Optimizer::lion, StateFormat::fp32, DType::bf16, DType::bf16},
                    OneMomentKind{Optimizer::lion, StateFormat::moments, DType::fp32, DType::fp32},
                    OneMomentKind{Optimizer::adagrad, StateFormat::fp32, DType::bf16, DType::fp16},
                    OneMomentKind{Optimizer::adagrad, StateFormat::moments, DType::fp32, DType::fp32}),
    [](const auto& kind) { return kind.param.name(); });

TEST_P(OneMomentArguments, OfAnInvalidHyperparameterAreNamed) {
  for (const float bad : {-1e-3f, NAN, inf}) {
    if (GetParam().optimizer == Optimizer::lion) {
      refuses_config(LionConfig{.learning_rate = bad}, "learning_rate");
      refuses_config(LionConfig{.weight_decay = bad}, "weight_decay");
      refuses_config(LionConfig{.beta1 = bad}, "beta1");
      refuses_config(LionConfig{.beta2 = bad}, "beta2");
    } else {
      refuses_config(AdagradConfig{.learning_rate = bad}, "learning_rate");
      refuses_config(AdagradConfig{.weight_decay = bad}, "weight_decay");
      refuses_config(AdagradConfig{.epsilon = bad}, "epsilon");
    }
  }
  const Hyperparameters good = one_moment_config(GetParam().optimizer);
  for (const float bad : {NAN, inf, -inf}) {
    refuses(optimizer_step(good, 1, bad, memory.tile()), ErrorCode::invalid_argument, {"gradient_factor"});
  }
  refuses(optimizer_step(good, 0, 1.0f, memory.tile()), ErrorCode::invalid_argument, {"step"});
}

TEST_P(OneMomentArguments, OfAnotherOptimizerThanTheTilesAreRefused) {
  const std::string own(to_string(GetParam().optimizer));
  for (const Hyperparameters& other :
       {Hyperparameters(AdamConfig{}), Hyperparameters(LionConfig{}), Hyperparameters(AdagradConfig{})}) {
    if (optimizer_of(other) == GetParam().optimizer) continue;
    refuses_config(other, "optimizer");
    refuses_config(other, own.c_str());
  }
  refuses(adam_step({}, 1, 1.0f, memory.tile()), ErrorCode::invalid_argument, {"optimizer", own});
  const std::vector<OptimizerSegment> mixed{{ElementCount(10), one_moment_config(GetParam().optimizer)},
                                            {ElementCount(300), AdamConfig{}}};
  refuses(optimizer_step_in_segments(mixed, 1, 1.0f, memory.tile()), ErrorCode::invalid_argument,
          {"segments[1]", "optimizer", own});
}

TEST_P(OneMomentArguments, OfAFormatThatTheOptimizerDoesNotTakeNameBothAndTheFormatsThatItTakes) {
  for (const StateFormat format : {StateFormat::split, StateFormat::split_bf16, StateFormat::split_q8}) {
    OptimizerTile tile = memory.tile();
    tile.format = format;
    refuses(
        optimizer_step(one_moment_config(GetParam().optimizer), 1, 1.0f, tile), ErrorCode::unsupported,
        {std::string(to_string(GetParam().optimizer)), std::string(to_string(format)), "fp32 or moments"});
    EXPECT_FALSE(initialize_tile(tile.gradient, tile.gradient_dtype, tile).has_value());
  }
}

TEST_P(OneMomentArguments, OfAnAdamTilesLengthAreRefused) {
  OptimizerTile tile = memory.tile();
  tile.optimizer = Optimizer::adam;
  refuses(optimizer_step(AdamConfig{}, 1, 1.0f, tile), ErrorCode::invalid_argument, {"state"});
}

}  // namespace
}  // namespace penstock::test
