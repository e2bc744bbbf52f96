#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/residency/host_residency.hpp"
#include "tiers/store/memory_budget.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <deque>
#include <memory>
#include <vector>

namespace penstock::swap {

struct ReplayOptions {
  ByteCount host_budget;
  Eviction eviction = Eviction::planned;
  ByteCount reuse_distance_max;  ///< for Eviction::reuse_distance
  ByteCount lookahead;           ///< as in RuntimeOptions; 0: loads begin when they are asked for
  bool predicted = true;         ///< the uses are known from the first round on, as after Runtime::predict()
  /// `placed`: memory has addresses, as that of a runtime, where a gap may be too short. `counted`: only bytes count.
  tiers::MemoryBudget::Ranges ranges = tiers::MemoryBudget::Ranges::placed;
};

/// What a round has moved.
struct RoundTraffic {
  ByteCount read, written;
  [[nodiscard]] ByteCount total() const { return read + written; }
};

/// The decisions of a runtime in the rounds of a trace, by the code that makes them in a run (HostResidency), without
/// memory and disk: one lease at a time, and each transfer ends before the next use. So its bytes are those of a run
/// whose trainer uses one tensor after the other.
///
///     auto replay = Replay::create(trace, {.host_budget = 8_GiB}).value();
///     ByteCount first = replay->round().value().read;    // nothing is in memory before
///
/// Owned by one thread. Memory grows with the tensors and uses of the trace.
class Replay : private HostResidency::Effects {
 public:
  /// At first all tensors on disk have their contents there. The trace outlives it.
  ///
  /// Errors: those of check_trace(); budget_too_small, for a tensor for which the budget has no room beside those that
  /// stay in memory.
  [[nodiscard]] static Result<std::unique_ptr<Replay>> create(const AccessTrace& trace,
                                                              const ReplayOptions& options);

  /// Errors: budget_too_small, with the use.
  [[nodiscard]] Result<RoundTraffic> round();
  /// Writes what is only in memory and has an extent; returns the bytes.
  ByteCount flush();

 private:
  Replay(const AccessTrace& trace, const ReplayOptions& options);
  Result<void> add_tensors();
  Result<void> add(const AccessTrace::Tensor& tensor);
  Result<void> put_on_disk(tiers::TensorId tensor);
  Result<void> use(tiers::TensorId tensor, Access access);
  void finish_transfer();
  void finish_transfers();

  void load(tiers::TensorId tensor, bool verify) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void drop(tiers::TensorId) override {}

  struct Transfer {
    tiers::TensorId tensor{};
    bool is_load = false;
  };

  const AccessTrace& trace_;
  tiers::Ledger ledger_;
  tiers::MemoryBudget budget_;
  tiers::TensorStore store_;
  ExtentAllocator extents_;
  HostResidency residency_;
  std::vector<tiers::TensorId> tensors_;  // by their numbers in the trace
  std::deque<Transfer> transfers_;        // in flight
};

}  // namespace penstock::swap
