// Units that are used on several streams.
#include "kit/deferred_rank.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using test::DeferredRank;

constexpr std::uint32_t units = 6;
constexpr std::uint64_t elements = 1024;

DeferredRank::Options options_of(std::uint64_t seed) {
  DeferredRank::Options options{.seed = seed};
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  options.config.dtype = options.config.grad_accum_dtype = DType::fp32;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    options.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(elements), 0}}});
  }
  return options;
}

void fill_with_unit(ParameterId id, std::uint64_t, std::span<float> values) {
  std::fill(values.begin(), values.end(), static_cast<float>(id.unit + 1));
}

enum class Then { lease_in_turn, lease_at_a_time, abandon };

/// A stream of the rank's device on which so many operations are enqueued before what comes.
std::unique_ptr<tiers::Stream> late_stream(DeferredRank& rank, std::uint64_t operations = 64) {
  auto late = rank.device().create_stream().value();
  for (std::uint64_t i = 0; i < operations; ++i) late->handle().host_queue()->enqueue([] {});
  return late;
}

/// Leases unit 0 on a stream that is late, and on the rank's own or not, then as many units as take its memory. Returns
/// whether the late stream has read its values.
bool reads_on_two_streams(std::uint64_t seed, Then then) {
  DeferredRank rank(options_of(seed));
  rank.engine().initialize(fill_with_unit).value();
  const auto late = late_stream(rank);
  bool right = true;

  UnitLease on_late = rank.engine().acquire(0, *late).value();
  const HostSpan bytes = tiers::HostDevice::bytes(on_late.parameters()[0].bytes);
  late->handle().host_queue()->enqueue([bytes, &right] {
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    right = std::all_of(values, values + elements, [](float value) { return value == 1; });
  });
  if (then != Then::lease_at_a_time) on_late.end();
  if (then == Then::abandon) {
    rank.engine().abandon_step(rank.stream()).value();
  } else {
    rank.engine().acquire(0, rank.stream()).value().end();
  }
  on_late.end();
  for (std::uint32_t unit = 1; unit < units; ++unit) {
    rank.engine().acquire(unit, rank.stream()).value().end();
  }
  rank.finish();
  const auto read = rank.device().create_event().value();
  late->record(*read).value();
  swap::RuntimeInternals(rank.runtime()).wait_for(*read, "the late stream", forever).value();
  return right;
}

TEST(Units, AreNotOverwrittenBeforeEachOfTheStreamsThatUseThemInTurn) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50))
    EXPECT_TRUE(reads_on_two_streams(seed, Then::lease_in_turn)) << seed;
}

TEST(Units, AreNotOverwrittenBeforeEachOfTheStreamsThatUseThemAtATime) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50))
    EXPECT_TRUE(reads_on_two_streams(seed, Then::lease_at_a_time)) << seed;
}

TEST(Units, AreNotOverwrittenBeforeAStreamThatUsesThemAfterTheStepWasAbandoned) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50))
    EXPECT_TRUE(reads_on_two_streams(seed, Then::abandon)) << seed;
}

/// Ends a step whose gradients are `value` in `count` elements; the others are 0.
void expect_gradients_of(DeferredRank& rank, float value, std::uint64_t count) {
  const StepOutcome outcome = rank.engine().step().value();
  EXPECT_NEAR(outcome.gradient_norm, value * std::sqrt(static_cast<double>(count)), 1e-3);
}

/// Enqueues a backward that makes each element `value`.
UnitGradients backward(DeferredRank& rank, std::uint32_t unit, tiers::Stream& stream, float value) {
  UnitGradients gradients = rank.engine().gradients(unit, stream).value();
  const auto values = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes).as<float>();
  stream.handle().host_queue()->enqueue([values, value] { std::fill(values.begin(), values.end(), value); });
  return gradients;
}

TEST(Gradients, AreNotWrittenByTheStepThatWasAbandoned) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50)) {
    SCOPED_TRACE(seed);
    DeferredRank::Options options = options_of(seed);
    options.model.units.resize(2);
    DeferredRank rank(options);
    rank.engine().initialize(fill_with_unit).value();
    const auto late = late_stream(rank, seed % 8), other = rank.device().create_stream().value();
    rank.engine().begin_step({}).value();
    (void)backward(rank, 1, *late, 5.0f);  // is not reduced

    rank.engine().abandon_step(*late).value();

    rank.engine().begin_step({}).value();
    for (const std::uint32_t unit : {1u, 0u})
      rank.engine().reduce(backward(rank, unit, *other, unit == 1 ? 3.0f : 0.0f), *other).value();
    expect_gradients_of(rank, 3.0f, elements);
  }
}

// They pass through one buffer of the device, where they are converted.
TEST(HostGradients, MayBeReducedOnSeveralStreams) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50)) {
    SCOPED_TRACE(seed);
    DeferredRank::Options options = options_of(seed);
    options.config.dtype = options.config.grad_accum_dtype = DType::bf16;
    options.device_beside = 1_MiB;
    options.model.units.resize(2);
    DeferredRank rank(options);
    rank.engine().initialize(fill_with_unit).value();
    const auto late = late_stream(rank, seed % 8);
    std::vector<float> none(elements), some(elements, 3.0f);
    rank.engine().begin_step({}).value();

    const std::vector<GradientSource> first = {HostTensor{HostSpan(std::span(some)), DType::fp32}},
                                      second = {HostTensor{HostSpan(std::span(none)), DType::fp32}};
    rank.engine().reduce(1, first, *late).value();
    rank.engine().reduce(0, second, rank.stream()).value();

    expect_gradients_of(rank, 3.0f, elements);
  }
}

// The first unit assigns, the second one adds.
TEST(SharedGradients, MayBeWrittenOnSeveralStreams) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50)) {
    SCOPED_TRACE(seed);
    DeferredRank::Options options = options_of(seed);
    options.model.units.resize(2);
    options.model.units[1].shared = {{0, 0}};
    DeferredRank rank(options);
    rank.engine().initialize(fill_with_unit).value();
    const auto late = late_stream(rank);
    rank.engine().begin_step({}).value();
    const auto write = [&](std::uint32_t unit, tiers::Stream& stream) {
      UnitGradients gradients = rank.engine().gradients(unit, stream).value();
      for (const GradientSlot& slot : gradients.slots()) {
        const bool is_shared = unit == 0 || &slot != gradients.slots().data();
        const auto values = tiers::HostDevice::bytes(slot.tensor.bytes).as<float>();
        stream.handle().host_queue()->enqueue([values, is_shared, adds = slot.accumulate] {
          for (float& value : values) value = (adds ? value : 0.0f) + (is_shared ? 2.0f : 0.0f);
        });
      }
      rank.engine().reduce(std::move(gradients), stream).value();
    };

    write(1, *late);
    write(0, rank.stream());

    expect_gradients_of(rank, 4.0f, elements);
  }
}

}  // namespace
}  // namespace penstock::zero
