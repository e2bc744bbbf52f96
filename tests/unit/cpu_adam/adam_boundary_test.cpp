#include "tile_fixture.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <string>
#include <thread>

namespace penstock::test {

using namespace cpu_adam;
namespace {

testing::AssertionResult refuses(const Result<AdamOutcome>& outcome, ErrorCode code,
                                 const std::string& named) {
  if (outcome) return testing::AssertionFailure() << "accepted";
  const std::string message = outcome.error().message();
  if (outcome.error().code() != code) return testing::AssertionFailure() << message;
  if (message.find(named) == std::string::npos) return testing::AssertionFailure() << message;
  return testing::AssertionSuccess();
}

class AdamBoundary : public testing::Test {
 protected:
  AdamBoundary() : memory(300, DType::bf16, DType::bf16) {
    memory.set(random_values(300, 1));
    before = memory.result_bytes();
  }
  void TearDown() override { EXPECT_EQ(memory.result_bytes(), before) << "a refused call wrote"; }

  TileMemory memory;
  std::vector<std::byte> before;
};

TEST_F(AdamBoundary, NamesTheHyperparameterAtFault) {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  const auto refused = [&](const AdamConfig& config, const char* named) {
    return refuses(adam_step(config, 1, 1.0f, memory.tile()), ErrorCode::invalid_argument, named);
  };
  for (const float bad : {-1e-3f, nan, inf}) {
    EXPECT_TRUE(refused({.learning_rate = bad}, "learning_rate"));
    EXPECT_TRUE(refused({.weight_decay = bad}, "weight_decay"));
  }
  for (const float bad : {-0.1f, 1.0f, 1.5f, nan}) {
    EXPECT_TRUE(refused({.beta1 = bad}, "beta1"));
    EXPECT_TRUE(refused({.beta2 = bad}, "beta2"));
  }
  for (const float bad : {-1e-45f, -1e-8f, nan, inf}) EXPECT_TRUE(refused({.epsilon = bad}, "epsilon"));
  for (const float bad : {nan, inf, -inf}) {
    EXPECT_TRUE(
        refuses(adam_step({}, 1, bad, memory.tile()), ErrorCode::invalid_argument, "gradient_factor"));
  }
  EXPECT_TRUE(refuses(adam_step({}, 0, 1.0f, memory.tile()), ErrorCode::invalid_argument, "step"));
}

TEST_F(AdamBoundary, NamesTheSpanWhoseLengthDoesNotFit) {
  const auto refused = [&](auto&& change, const char* named) {
    AdamTile tile = memory.tile();
    change(tile);
    return refuses(adam_step({}, 1, 1.0f, tile), ErrorCode::invalid_argument, named);
  };
  const auto shorter = [](auto span, std::uint64_t by) {
    return span.subspan(ByteCount(0), span.size() - ByteCount(by));
  };
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.state = shorter(tile.state, 4); }, "state"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.gradient = shorter(tile.gradient, 2); }, "gradient"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.gradient = shorter(tile.gradient, 1); }, "gradient"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.gradient = {}; }, "gradient"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.parameter = shorter(tile.parameter, 2); }, "parameter"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.parameter_dtype = DType::fp32; }, "parameter"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.gradient_dtype = static_cast<DType>(9); }, "gradient"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.elements = ElementCount(299); }, "state"));
  EXPECT_TRUE(refused([&](AdamTile& tile) { tile.elements = ElementCount(~0ull); }, "elements"));
}

TEST_F(AdamBoundary, RefusesSpansThatOverlapOrAreMisaligned) {
  const auto refused = [&](auto&& change, const char* named) {
    AdamTile tile = memory.tile();
    change(tile);
    return refuses(adam_step({}, 1, 1.0f, tile), ErrorCode::invalid_argument, named);
  };
  const HostSpan state = memory.tile().state;
  EXPECT_TRUE(refused([&](AdamTile& t) { t.gradient = state.subspan(3000_B, 600_B); }, "overlap"));
  EXPECT_TRUE(refused([&](AdamTile& t) { t.parameter = state.subspan(0_B, 600_B); }, "overlap"));
  EXPECT_TRUE(refused([&](AdamTile& t) { t.gradient = t.parameter; }, "overlap"));
  alignas(4) std::byte other[3604] = {};
  EXPECT_TRUE(refused([&](AdamTile& t) { t.gradient = {other + 1, 600_B}; }, "aligned"));
  EXPECT_TRUE(refused([&](AdamTile& t) { t.parameter = {other + 3, 600_B}; }, "aligned"));
  EXPECT_TRUE(refused([&](AdamTile& t) { t.state = {other + 2, 3600_B}; }, "aligned"));
}

TEST_F(AdamBoundary, RefusesAnInstructionSetThatTheMachineLacks) {
  for (const Isa isa : isas) {
    if (is_runnable(isa)) continue;
    EXPECT_TRUE(refuses(adam_step({}, 1, 1.0f, memory.tile(), {.isa = isa}), ErrorCode::unsupported, "isa"));
  }
  EXPECT_TRUE(is_runnable(Isa::scalar));
  EXPECT_TRUE(is_runnable(best_isa().isa));
  EXPECT_FALSE(best_isa().reason.empty());
}

/// Records the blocks that it is called with; rejects the given blocks.
class Recorder : public BlockObserver {
 public:
  explicit Recorder(ConstHostSpan state, std::vector<std::size_t> rejected = {})
      : state_(state), rejected_(std::move(rejected)), seen_before(64), seen_after(64), bytes_before(64) {}

  bool before_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    EXPECT_EQ(bytes.data(), state_.data() + block * 16384 * 12);
    ++seen_before[block];
    bytes_before[block].assign(bytes.data(), bytes.data() + bytes.size().value());
    return std::find(rejected_.begin(), rejected_.end(), block) == rejected_.end();
  }
  void after_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    EXPECT_EQ(bytes.data(), state_.data() + block * 16384 * 12);
    EXPECT_EQ(bytes.size().value(), bytes_before[block].size());
    EXPECT_FALSE(std::equal(bytes_before[block].begin(), bytes_before[block].end(), bytes.data()));
    EXPECT_EQ(seen_before[block], 1);
    ++seen_after[block];
  }

 private:
  ConstHostSpan state_;
  std::vector<std::size_t> rejected_;

 public:
  std::vector<int> seen_before, seen_after;  // one element a block: no two workers share one
  std::vector<std::vector<std::byte>> bytes_before;
};

TEST(AdamObserver, SeesEachBlockOnceBeforeAndOnceAfter) {
  constexpr std::size_t count = 9 * 16384 + 5;
  TileMemory memory(count, DType::bf16, DType::bf16);
  memory.set(random_values(count, 2));
  parallel::Workers workers = parallel::Workers::create({.threads = 3}).value();
  for (parallel::Workers* chosen : {static_cast<parallel::Workers*>(nullptr), &workers}) {
    Recorder recorder(memory.tile().state);

    const AdamOutcome outcome =
        adam_step({}, 1, 1.0f, memory.tile(), {.workers = chosen, .observer = &recorder}).value();

    EXPECT_EQ(outcome.blocks_updated, 10u);
    for (std::size_t block = 0; block < 64; ++block) {
      EXPECT_EQ(recorder.seen_before[block], block < 10 ? 1 : 0);
      EXPECT_EQ(recorder.seen_after[block], block < 10 ? 1 : 0);
    }
  }
}

TEST(AdamObserver, ARejectedBlockIsLeftAloneAndReported) {
  constexpr std::size_t count = 6 * 16384;
  TileMemory memory(count, DType::bf16, DType::bf16);
  memory.set(random_values(count, 2));
  const std::vector<std::byte> before = memory.result_bytes();
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  Recorder recorder(memory.tile().state, {4, 1});

  const AdamOutcome outcome =
      adam_step({}, 1, 1.0f, memory.tile(), {.workers = &workers, .observer = &recorder}).value();

  EXPECT_EQ(outcome.blocks_updated, 4u);
  EXPECT_EQ(outcome.first_rejected_block, 1u);
  const std::vector<std::byte> after = memory.result_bytes();
  for (std::size_t block = 0; block < 6; ++block) {
    const bool rejected = block == 1 || block == 4;
    const auto same = [&](std::size_t first, std::size_t size) {
      return std::equal(&before[first], &before[first] + size, &after[first]);
    };
    EXPECT_EQ(same(block * 16384 * 12, 16384 * 12), rejected) << block;
    EXPECT_EQ(same(count * 12 + block * 16384 * 2, 16384 * 2), rejected) << block;
    EXPECT_EQ(recorder.seen_after[block], rejected ? 0 : 1);
  }
}

TEST(AdamOutcome, NamesTheFirstBlockThatIsNoLongerFinite) {
  constexpr std::size_t count = 5 * 16384 + 3;
  const float inf = std::numeric_limits<float>::infinity();
  struct Fault {
    std::size_t element;
    float master, gradient;
  };
  // In a vector, in the last one of a block, in a scalar tail; NaN, infinity; a second moment alone.
  const Fault faults[] = {{0, NAN, 0.0f},
                          {16383, inf, 0.0f},
                          {2 * 16384 + 7, 1.0f, inf},
                          {5 * 16384 + 2, -inf, 0.0f},
                          {4 * 16384, 1.0f, 3e38f}};
  for (const Fault& fault : faults) {
    for (const Isa isa : isas) {
      if (!is_runnable(isa)) continue;
      TileValues values = random_values(count, 6);
      values.master[fault.element] = fault.master;
      values.gradient[fault.element] = fault.gradient;
      values.gradient[count - 1] = fault.element == 0 ? inf : 0.0f;
      TileMemory memory(count, DType::fp32, DType::bf16);
      memory.set(values);

      const AdamOutcome outcome = adam_step({}, 1, 1.0f, memory.tile(), {.isa = isa}).value();

      EXPECT_EQ(outcome.first_non_finite_block, fault.element / 16384) << to_string(isa);
      EXPECT_EQ(outcome.blocks_updated, 6u);
    }
  }
}

TEST(AdamOutcome, NamesNoBlockOfFiniteAndEmptyTiles) {
  TileMemory memory(1000, DType::bf16, DType::bf16), empty(0, DType::bf16, DType::bf16);
  memory.set(random_values(1000, 6));

  const AdamOutcome outcome = adam_step({}, 1, 1.0f, memory.tile()).value();
  EXPECT_EQ(outcome.blocks_updated, 1u);
  EXPECT_FALSE(outcome.first_non_finite_block.has_value());
  EXPECT_FALSE(outcome.first_rejected_block.has_value());
  EXPECT_EQ(adam_step({}, 1, 1.0f, empty.tile()).value().blocks_updated, 0u);
}

TEST(InitializeTile, SetsMasterAndParameterAndClearsTheMoments) {
  parallel::Workers workers = parallel::Workers::create({.threads = 2}).value();
  for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 129, 16384, 40000}) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
      const TileValues values = random_values(count, count);
      TileMemory memory(count, DType::bf16, DType::bf16);
      memory.set(values);
      TileMemory initial(count, dtype, DType::bf16);
      initial.set(values);

      ASSERT_TRUE(initialize_tile(initial.tile().gradient, dtype, memory.tile(), &workers).has_value());

      for (std::size_t i = 0; i < count; ++i) {
        ASSERT_EQ(memory.master(i), rounded_to(dtype, values.gradient[i]));
        ASSERT_EQ(memory.parameter(i), rounded_to(DType::bf16, memory.master(i)));
        ASSERT_EQ(memory.m(i), 0.0f);
        ASSERT_EQ(memory.v(i), 0.0f);
      }
    }
  }
}

TEST(InitializeTile, RefusesInitialValuesOfAnotherLengthOrWithinTheTile) {
  TileMemory memory(300, DType::bf16, DType::bf16);
  const AdamTile tile = memory.tile();
  EXPECT_FALSE(initialize_tile(tile.gradient, DType::fp32, tile).has_value());
  EXPECT_FALSE(initialize_tile(tile.gradient.subspan(0_B, 598_B), DType::bf16, tile).has_value());
  EXPECT_FALSE(initialize_tile(tile.parameter, DType::bf16, tile).has_value());
  EXPECT_FALSE(initialize_tile(tile.state.subspan(0_B, 600_B), DType::bf16, tile).has_value());
}

TEST(Workers, CoverEveryBlockOnce) {
  for (const std::uint32_t threads : {1u, 2u, 5u}) {
    parallel::Workers workers = parallel::Workers::create({.threads = threads}).value();
    EXPECT_EQ(workers.threads(), threads);
    for (const std::size_t count : std::initializer_list<std::size_t>{0, 1, 2, 7, 1000}) {
      std::vector<std::atomic<int>> touched(count);
      workers.parallel_blocks(count, [&](std::size_t first, std::size_t last) noexcept {
        for (std::size_t i = first; i < last; ++i) touched[i].fetch_add(1);
      });
      EXPECT_TRUE(std::all_of(touched.begin(), touched.end(), [](const auto& n) { return n.load() == 1; }));
    }
  }
}

TEST(Workers, OneThreadIsTheCaller) {
  parallel::Workers workers = parallel::Workers::create({.threads = 1}).value();
  int calls = 0;
  const std::thread::id caller = std::this_thread::get_id();
  workers.parallel_blocks(1000, [&](std::size_t first, std::size_t last) noexcept {
    ++calls;
    EXPECT_EQ(std::this_thread::get_id(), caller);
    EXPECT_EQ(last - first, 1000u);
  });
  EXPECT_EQ(calls, 1);
}

TEST(Workers, RefuseNoThreadsAndFarTooMany) {
  EXPECT_EQ(parallel::Workers::create({.threads = 0}).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(parallel::Workers::create({.threads = 5000}).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::test
