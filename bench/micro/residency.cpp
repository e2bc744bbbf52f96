#include "swap/residency/host_residency.hpp"

#include <penstock/base/check.hpp>

#include <benchmark/benchmark.h>
#include <string>
#include <utility>
#include <vector>

// The cost of a decision of host residency: one use of a tensor from its request to the end of its lease, with the
// loads, stores, evictions and prefetches that it causes. The disk is simulated and takes no time.

namespace penstock::swap {
namespace {

enum class Sizes : std::uint8_t { equal, mixed };

/// `count` tensors in a budget that holds half of their bytes, used repeatedly in the same order.
class Residency : private HostResidency::Effects {
 public:
  Residency(std::uint32_t count, Access access, Sizes sizes, Eviction eviction)
      : access_(access),
        bytes_(total(count, sizes)),
        budget_(tiers::Tier::host, bytes_ / 2, ledger_),
        extents_(std::vector<ExtentAllocator::PathRoom>{{.capacity = bytes_, .reserved = bytes_}},
                 Alignment(4096)),
        residency_(tensors_, budget_, extents_, ledger_, *this,
                   {.eviction = eviction,
                    .reuse_distance_max = bytes_ / 2,
                    .lookahead = tensor_max * 16,
                    .file_names = {"file"}}) {
    for (std::uint32_t i = 0; i < count; ++i) add(size(i, sizes));
    for (std::uint32_t i = 0; i < count; ++i) use(i, Access::overwrite, Use::unrecorded);
    for (int rehearsal = 0; rehearsal < 2; ++rehearsal) {
      for (std::uint32_t i = 0; i < count; ++i) use_next();
    }
  }

  void use_next() {
    use(next_, access_, Use::recorded);
    if (++next_ < order_.size()) return;
    next_ = 0;
    residency_.end_round();
  }
  /// What the end of a round does: the next one is planned.
  void plan_round() {
    std::vector<NextUses::Use> uses;
    uses.reserve(order_.size());
    for (const tiers::TensorId tensor : order_) uses.push_back({tensor, access_});
    residency_.predict(std::move(uses));
  }
  [[nodiscard]] std::uint64_t loads() const { return loads_; }

 private:
  static constexpr ByteCount tensor_max = 64_KiB;
  static ByteCount size(std::uint32_t number, Sizes sizes) {
    return sizes == Sizes::equal ? tensor_max : ByteCount(4096) * (1 + number * 2654435761u / 268435456u);
  }
  static ByteCount total(std::uint32_t count, Sizes sizes) {
    ByteCount bytes;
    for (std::uint32_t i = 0; i < count; ++i) bytes += size(i, sizes);
    return bytes;
  }

  void add(ByteCount size) {
    const auto unit = static_cast<std::uint32_t>(order_.size());
    const auto tensor = tensors_.add({.name = "tensor " + std::to_string(unit),
                                      .key = {.unit = unit},
                                      .size = size,
                                      .extent = extents_.allocate(size).value()});
    order_.push_back(tensor.value());
    residency_.add(order_.back()).value();
  }

  void use(std::size_t index, Access access, Use use) {
    const tiers::TensorId tensor = order_[index];
    const RequestId id = residency_.request(tensor, access, use);
    residency_.advance();
    while (!residency_.take(id)) {
      PENSTOCK_CHECK(!loading_.empty() || !storing_.empty());
      finish_effects();
    }
    residency_.release(tensor, access);
    residency_.advance();
    finish_effects();
  }
  void finish_effects() {
    for (const tiers::TensorId tensor : std::exchange(loading_, {})) residency_.finish_load(tensor, ok());
    for (const tiers::TensorId tensor : std::exchange(storing_, {})) residency_.finish_store(tensor, ok());
    residency_.advance();
  }

  void load(tiers::TensorId tensor, bool, bool) override { loading_.push_back(tensor), ++loads_; }
  void store(tiers::TensorId tensor, const tiers::Extent&) override { storing_.push_back(tensor); }
  void hasten(tiers::TensorId) override {}
  void drop(tiers::TensorId) override {}

  Access access_;
  ByteCount bytes_;
  tiers::Ledger ledger_;
  tiers::MemoryBudget budget_;
  tiers::TensorStore tensors_;
  ExtentAllocator extents_;
  HostResidency residency_;
  std::vector<tiers::TensorId> order_, loading_, storing_;
  std::size_t next_ = 0;
  std::uint64_t loads_ = 0;
};

void decide(benchmark::State& state, Access access, Sizes sizes, Eviction eviction) {
  Residency residency(static_cast<std::uint32_t>(state.range(0)), access, sizes, eviction);
  const std::uint64_t loads_before = residency.loads();
  for (auto _ : state) residency.use_next();
  state.counters["loads"] = benchmark::Counter(static_cast<double>(residency.loads() - loads_before),
                                               benchmark::Counter::kAvgIterations);
}

void plan_round(benchmark::State& state) {
  Residency residency(static_cast<std::uint32_t>(state.range(0)), Access::modify, Sizes::mixed,
                      Eviction::planned);
  for (auto _ : state) residency.plan_round();
}
BENCHMARK(plan_round)
    ->Name("residency/plan_round")
    ->RangeMultiplier(10)
    ->Range(1000, 100'000)
    ->Unit(benchmark::kMillisecond);

// A whole number of rounds for each size, because loads are not spread evenly over a round.
constexpr std::int64_t uses = 100'000;

BENCHMARK_CAPTURE(decide, read, Access::read, Sizes::equal, Eviction::planned)
    ->Name("residency/read")
    ->RangeMultiplier(10)
    ->Range(1000, uses)
    ->Iterations(uses);
BENCHMARK_CAPTURE(decide, modify, Access::modify, Sizes::equal, Eviction::planned)
    ->Name("residency/modify")
    ->RangeMultiplier(10)
    ->Range(1000, uses)
    ->Iterations(uses);
BENCHMARK_CAPTURE(decide, mixed_sizes, Access::modify, Sizes::mixed, Eviction::planned)
    ->Name("residency/mixed_sizes")
    ->RangeMultiplier(10)
    ->Range(1000, uses)
    ->Iterations(uses);
BENCHMARK_CAPTURE(decide, lru, Access::modify, Sizes::mixed, Eviction::lru)
    ->Name("residency/lru")
    ->RangeMultiplier(10)
    ->Range(1000, uses)
    ->Iterations(uses);
BENCHMARK_CAPTURE(decide, reuse_distance, Access::modify, Sizes::mixed, Eviction::reuse_distance)
    ->Name("residency/reuse_distance")
    ->RangeMultiplier(10)
    ->Range(1000, uses)
    ->Iterations(uses);

}  // namespace
}  // namespace penstock::swap
