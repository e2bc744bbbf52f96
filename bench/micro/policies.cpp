#include "swap/policy/eviction_policy.hpp"
#include "swap/policy/prefetch_policy.hpp"

#include <benchmark/benchmark.h>

// The cost of the policies of host residency alone, with the number of tensors of a large model.

namespace penstock::swap {
namespace {

using tiers::TensorId;

/// Evicts the first copy and inserts another one.
void choose_eviction(benchmark::State& state, Eviction policy) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  EvictionOrder order(policy);
  for (std::uint32_t i = 0; i < count; ++i) {
    order.update(TensorId(i), EvictionCandidate{.last_use = i, .next_use = i});
  }
  std::uint64_t position = count;
  for (auto _ : state) {
    TensorId victim{};
    order.walk(position % count, [&](TensorId first) {
      victim = first;
      return false;
    });
    benchmark::DoNotOptimize(victim);
    order.update(victim, std::nullopt);
    order.update(victim,
                 EvictionCandidate{
                     .dirty = position % 2 == 0, .last_use = position, .next_use = position % count + count});
    ++position;
  }
}
BENCHMARK_CAPTURE(choose_eviction, planned, Eviction::planned)
    ->Name("policy/eviction/planned")
    ->RangeMultiplier(10)
    ->Range(1000, 100'000);
BENCHMARK_CAPTURE(choose_eviction, lru, Eviction::lru)
    ->Name("policy/eviction/lru")
    ->RangeMultiplier(10)
    ->Range(1000, 100'000);

/// Searches for a clean copy that is used later than a prefetch, which no copy is, while candidates change.
void choose_eviction_for_prefetch(benchmark::State& state, Eviction policy) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  EvictionOrder order(policy);
  std::uint64_t position = 0;
  for (; position < count; ++position) {
    order.update(TensorId(static_cast<std::uint32_t>(position)),
                 EvictionCandidate{.last_use = position, .next_use = position});
  }
  for (auto _ : state) {
    benchmark::DoNotOptimize(order.walk_clean_used_from(position + 1, [](TensorId) { return false; }));
    order.update(TensorId(static_cast<std::uint32_t>(position % count)),
                 EvictionCandidate{.last_use = position, .next_use = position});
    ++position;
  }
}
BENCHMARK_CAPTURE(choose_eviction_for_prefetch, planned, Eviction::planned)
    ->Name("policy/eviction_for_prefetch/planned")
    ->RangeMultiplier(10)
    ->Range(1000, 100'000);
BENCHMARK_CAPTURE(choose_eviction_for_prefetch, lru, Eviction::lru)
    ->Name("policy/eviction_for_prefetch/lru")
    ->RangeMultiplier(10)
    ->Range(1000, 100'000);

/// The trace advances by one use; the next tensor of the window is chosen and loaded, and the used one dropped.
void choose_prefetch(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  constexpr PrefetchFacts on_disk{
      .room = 64_KiB, .payload = 64_KiB, .lacks_room = true, .loadable = true, .retained = true};
  constexpr PrefetchFacts in_memory{.room = 64_KiB, .payload = 64_KiB, .retained = true, .evictable = true};
  NextUses trace;
  PrefetchPolicy policy(trace, 1_MiB);
  for (std::uint32_t i = 0; i < count; ++i) trace.use(TensorId(i), Access::read);
  trace.end_round();
  policy.rebuild();
  for (std::uint32_t i = 0; i < count; ++i) policy.update(TensorId(i), on_disk);

  std::uint32_t next = 0;
  for (auto _ : state) {
    const TensorId used{next};
    const std::uint64_t position = trace.use(used, Access::read);
    policy.update(used, on_disk);
    policy.advance(used, position);
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
