// A unit that is used on several streams.
#include "kit/deferred_rank.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <algorithm>

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

/// Leases unit 0 on a stream that is late, and on the rank's own, then as many units as take its memory. Returns
/// whether the late stream has read its values.
bool reads_on_two_streams(std::uint64_t seed, bool at_a_time) {
  DeferredRank::Options options = options_of(seed);
  tiers::Device* device = nullptr;
  options.change = [&](Accelerator& made) { device = made.device.get(); };
  DeferredRank rank(options);
  const auto late = device->create_stream().value();
  rank.engine().initialize(fill_with_unit).value();
  bool right = true;

  UnitLease on_late = rank.engine().acquire(0, *late).value();
  const HostSpan bytes = tiers::HostDevice::bytes(on_late.parameters()[0].bytes);
  for (int i = 0; i < 64; ++i) late->handle().host_queue()->enqueue([] {});
  late->handle().host_queue()->enqueue([bytes, &right] {
    const auto* const values = reinterpret_cast<const float*>(bytes.data());
    right = std::all_of(values, values + elements, [](float value) { return value == 1; });
  });
  if (!at_a_time) on_late.end();
  UnitLease own = rank.engine().acquire(0, rank.stream()).value();
  on_late.end();
  own.end();
  for (std::uint32_t unit = 1; unit < units; ++unit) {
    rank.engine().acquire(unit, rank.stream()).value().end();
  }
  rank.finish();
  const auto read = device->create_event().value();
  late->record(*read).value();
  swap::RuntimeInternals(rank.runtime()).wait_for(*read, "the late stream", forever).value();
  return right;
}

TEST(Units, AreNotOverwrittenBeforeEachOfTheStreamsThatUseThemInTurn) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50))
    EXPECT_TRUE(reads_on_two_streams(seed, false)) << seed;
}

TEST(Units, AreNotOverwrittenBeforeEachOfTheStreamsThatUseThemAtATime) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 50))
    EXPECT_TRUE(reads_on_two_streams(seed, true)) << seed;
}

}  // namespace
}  // namespace penstock::zero
