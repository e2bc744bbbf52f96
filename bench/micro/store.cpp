#include "tiers/store/tensor_store.hpp"

#include <benchmark/benchmark.h>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

/// All state transitions of one modifying use: load, lease, store, drop.
void transitions(benchmark::State& state) {
  const auto count = static_cast<std::uint32_t>(state.range(0));
  Ledger ledger;
  MemoryBudget budget(Tier::host, 1_MiB, ledger);
  TensorStore store;
  std::vector<TensorId> tensors;
  for (std::uint32_t i = 0; i < count; ++i) {
    tensors.push_back(
        store
            .add({.name = "tensor " + std::to_string(i),
                  .key = {.unit = i},
                  .size = 64_KiB,
                  .extent = Extent{.offset = FileOffset(i * (64_KiB).value()), .length = 64_KiB}})
            .value());
    store.begin_overwrite(tensors.back(), *budget.reserve(64_KiB, Purpose::scratch));
    store.end_exclusive(tensors.back());
    store.begin_store(tensors.back());
    store.finish_store(tensors.back(), true);
    store.drop(tensors.back());
  }
  std::size_t next = 0;
  for (auto _ : state) {
    const TensorId tensor = tensors[next];
    store.begin_load(tensor, *budget.reserve(64_KiB, Purpose::scratch));
    store.finish_load(tensor, true);
    store.begin_exclusive(tensor);
    store.end_exclusive(tensor);
    store.begin_store(tensor);
    store.finish_store(tensor, true);
    store.drop(tensor);
    if (++next == count) next = 0;
  }
}
BENCHMARK(transitions)->Name("store/transitions")->RangeMultiplier(10)->Range(1000, 100'000);

}  // namespace
}  // namespace penstock::tiers
