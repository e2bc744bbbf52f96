#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;
namespace {

constexpr std::size_t count = 40'000, run = 256;
constexpr StateFormat all_formats[] = {StateFormat::fp32,       StateFormat::split,
                                       StateFormat::split_bf16, StateFormat::split_q8,
                                       StateFormat::moments,    StateFormat::moments_bf16};

/// Segments that end within a vector, beyond a block's end and at one; and a segment of a single element.
std::vector<AdamSegment> segments() {
  return {
      {ElementCount(77), {.learning_rate = 1e-2f, .weight_decay = 0.1f}},
      {ElementCount(78), {.learning_rate = 0.0f}},
      {ElementCount(16384 + 300),
       {.learning_rate = 3e-3f, .weight_decay = 0.0f, .decay_mode = AdamDecay::l2}},
      {ElementCount(2 * 16384), {.learning_rate = 1e-2f, .weight_decay = 0.5f, .decay_mode = AdamDecay::l2}},
      {ElementCount(count), {.learning_rate = 2e-2f, .beta1 = 0.5f, .beta2 = 0.9f}}};
}

/// A tile, and its masters after some steps.
class Trained {
 public:
  explicit Trained(StateFormat format)
      : format_(format),
        state_(tile_bytes(format, ElementCount(count)).value().value() / sizeof(float) + 1),
        gradient_(count),
        parameter_(count + 32, slack) {
    const TileValues values = random_values(count, 5);
    gradient_ = values.gradient;
    EXPECT_TRUE(initialize_tile(ConstHostSpan(std::span(values.master)), DType::fp32, tile()).has_value());
  }
  [[nodiscard]] AdamTile tile() {
    return {
        .state = HostSpan(std::span(state_)).subspan({}, tile_bytes(format_, ElementCount(count)).value()),
        .gradient = HostSpan(std::span(gradient_)),
        .parameter = HostSpan(std::span(parameter_).subspan(static_cast<std::size_t>(cache_line()), count)),
        .elements = ElementCount(count),
        .gradient_dtype = DType::fp32,
        .format = format_};
  }
  template <class Hyperparameters>
  std::vector<float> masters_after(std::uint64_t steps, const Hyperparameters& of, const AdamExecution& how) {
    for (std::uint64_t step = 1; step <= steps; ++step) {
      const auto outcome = update(of, step, how);
      EXPECT_TRUE(outcome.has_value());
      EXPECT_FALSE(outcome->first_non_finite_block.has_value());
    }
    std::vector<float> masters(count);
    EXPECT_TRUE(read_states(tile(), StateKind::master, ElementCount(0), masters).has_value());
    return masters;
  }

  /// Compares every byte of state and parameters, and the bytes around the parameters.
  [[nodiscard]] bool equals(const Trained& other) const {
    return std::memcmp(state_.data(), other.state_.data(), state_.size() * sizeof(float)) == 0 &&
           std::equal(parameter_.begin() + cache_line(), parameter_.end() - 32 + cache_line(),
                      other.parameter_.begin() + other.cache_line()) &&
           std::count(parameter_.begin(), parameter_.end(), slack) == 32;
  }

 private:
  static constexpr std::uint16_t slack = 0xdead;
  /// Where the parameters begin, at a multiple of 64 B.
  [[nodiscard]] std::ptrdiff_t cache_line() const {
    return static_cast<std::ptrdiff_t>((64 - reinterpret_cast<std::uintptr_t>(parameter_.data()) % 64) / 2 %
                                       32);
  }
  Result<AdamOutcome> update(const AdamConfig& config, std::uint64_t step, const AdamExecution& how) {
    return adam_step(config, step, 0.5f, tile(), how);
  }
  Result<AdamOutcome> update(std::span<const AdamSegment> some, std::uint64_t step,
                             const AdamExecution& how) {
    return adam_step_in_segments(some, step, 0.5f, tile(), how);
  }

  StateFormat format_;
  std::vector<float> state_, gradient_;
  std::vector<std::uint16_t> parameter_;
};

class Segments : public testing::TestWithParam<StateFormat> {};
INSTANTIATE_TEST_SUITE_P(All, Segments, testing::ValuesIn(all_formats),
                         [](const auto& format) { return std::string(to_string(format.param)); });

// An element's result is the same as in a tile that has the element's hyperparameters throughout. The exception are
// runs of split_q8 in two segments, whose moments share scales from the first step on.
TEST_P(Segments, AreUpdatedAsIfEachWereItsOwnTile) {
  for (const std::uint64_t steps : {1u, 3u}) {
    for (const Isa isa : isas) {
      if (!is_runnable(isa)) continue;
      const auto mixed = Trained(GetParam()).masters_after(steps, segments(), {.isa = isa});
      std::size_t begin = 0;
      for (const AdamSegment& segment : segments()) {
        const auto alone = Trained(GetParam()).masters_after(steps, segment.config, {.isa = isa});
        const std::size_t end = segment.end.value();
        const bool in_common = GetParam() == StateFormat::split_q8 && steps > 1;
        const std::size_t first = in_common ? (begin + run - 1) / run * run : begin;
        const std::size_t last = in_common && end < count ? end / run * run : end;
        for (std::size_t i = first; i < last; ++i) {
          ASSERT_EQ(mixed[i], alone[i]) << to_string(isa) << ", element " << i << " after " << steps;
        }
        begin = end;
      }
    }
  }
}

TEST_P(Segments, AreTheSameForEveryIsaThreadCountAndStore) {
  Trained wanted(GetParam());
  wanted.masters_after(3, segments(), {.isa = Isa::scalar});
  parallel::Workers workers = parallel::Workers::create({.threads = 3}).value();
  for (const Isa isa : isas) {
    if (!is_runnable(isa)) continue;
    Trained got(GetParam());
    got.masters_after(3, segments(), {.workers = &workers, .isa = isa, .nontemporal_parameter = true});
    EXPECT_TRUE(got.equals(wanted)) << to_string(isa);
  }
}

TEST(SegmentErrors, NameTheSegment) {
  Trained trained(StateFormat::fp32);
  const auto refused = [&](const std::vector<AdamSegment>& some) {
    const auto outcome = adam_step_in_segments(some, 1, 1.0f, trained.tile());
    EXPECT_FALSE(outcome.has_value());
    return outcome ? std::string() : outcome.error().message();
  };
  const auto says = [&](const std::vector<AdamSegment>& some, const std::string& what) {
    EXPECT_NE(refused(some).find(what), std::string::npos) << refused(some);
  };
  says({}, "segments, wanted");
  says({{ElementCount(10), {}}}, "last segment does not end with the tile");
  says({{ElementCount(10), {}}, {ElementCount(10), {}}, {ElementCount(count), {}}}, "segments[1].end");
  says({{ElementCount(10), {}}, {ElementCount(count + 1), {}}}, "last segment does not end with the tile");
  says({{ElementCount(10), {}}, {ElementCount(count), {.beta2 = 1.0f}}}, "segments[1]");
  says({{ElementCount(10), {}}, {ElementCount(count), {.beta2 = 1.0f}}}, "beta2");
}

}  // namespace
}  // namespace penstock::test
