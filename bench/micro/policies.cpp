#include "swap/policy/eviction_policy.hpp"
#include "swap/policy/prefetch_policy.hpp"

#include <benchmark/benchmark.h>

// The cost of the policies of host residency alone, with the number of tensors of a large model.

namespace penstock::swap {
namespace {

using tiers::TensorId;

/// Evicts the copy whose next use is furthest ahead and inserts another one.
void choose_eviction(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  EvictionOrder order(Eviction::planned);
  for (std::uint32_t i = 0; i < count; ++i) order.update(TensorId(i), EvictionCandidate{.next_use = i});
  std::uint64_t position = count;
  for (auto _ : state) {
    const auto victim = order.first();
    benchmark::DoNotOptimize(victim);
    order.update(*victim, std::nullopt);
    order.update(*victim, EvictionCandidate{.dirty = position % 2 == 0, .next_use = position % count});
    ++position;
  }
}
BENCHMARK(choose_eviction)->Name("policy/eviction")->RangeMultiplier(10)->Range(1000, 100'000);

/// The trace advances by one use; the next tensor of the window is chosen and loaded, and the used one dropped.
void choose_prefetch(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  constexpr PrefetchFacts on_disk{
      .room = 64_KiB, .payload = 64_KiB, .lacks_room = true, .loadable = true, .retained = true};
  constexpr PrefetchFacts in_memory{.room = 64_KiB, .payload = 64_KiB, .retained = true, .evictable = true};
  AccessTrace trace;
  PrefetchPolicy policy(trace, 1_MiB);
  for (std::uint32_t i = 0; i < count; ++i) trace.use(TensorId(i));
  trace.end_round();
  policy.rebuild();
  for (std::uint32_t i = 0; i < count; ++i) policy.update(TensorId(i), on_disk);

  std::uint32_t next = 0;
  for (auto _ : state) {
    const TensorId used{next};
    trace.use(used);
    policy.update(used, on_disk);
    policy.advance(used);
    if (const auto ahead = policy.next()) {
      benchmark::DoNotOptimize(policy.has_room(*ahead, 1_MiB));
      benchmark::DoNotOptimize(policy.evicts_from(*ahead));
      policy.update(*ahead, in_memory);
    }
    if (++next == count) next = 0, trace.end_round();
  }
}
BENCHMARK(choose_prefetch)->Name("policy/prefetch")->RangeMultiplier(10)->Range(1000, 100'000);

}  // namespace
}  // namespace penstock::swap
