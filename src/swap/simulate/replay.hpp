#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/residency/host_residency.hpp"
#include "swap/simulate/simulated_disk.hpp"
#include "tiers/store/memory_budget.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <array>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::swap {

/// What a round takes on a machine.
struct ReplayCosts {
  DiskRates disk;
  /// Bytes a second at which the trainer goes through a tensor of each purpose while it holds it; 0: in no time.
  std::array<double, tiers::purpose_count> use{};
};

struct ReplayOptions {
  ByteCount host_budget;
  Eviction eviction = Eviction::planned;
  ByteCount reuse_distance_max;  ///< for Eviction::reuse_distance
  ByteCount lookahead;           ///< as in RuntimeOptions; 0: loads begin when they are asked for
  bool predicted = true;         ///< the uses are known from the first round on, as after Runtime::predict()
  /// `placed`: memory has addresses, as that of a runtime, where a gap may be too short. `counted`: only bytes count.
  tiers::MemoryBudget::Ranges ranges = tiers::MemoryBudget::Ranges::placed;
  /// Then transfers take time, and go on while the trainer uses tensors. Otherwise each ends before the next use.
  std::optional<ReplayCosts> costs = {};
};

/// What a round has moved, and with ReplayCosts the seconds that it has taken: `seconds` is the sum of the next three.
struct ReplayedRound {
  ByteCount read, written;
  double seconds = 0;
  double used = 0;              ///< in which the trainer held a tensor
  double waited_for_loads = 0;  ///< of what it asked for
  double waited_for_room = 0;   ///< until something else had left memory, or was loaded
  double disk_busy = 0;         ///< in which the disk moved something
  [[nodiscard]] ByteCount total() const { return read + written; }
};

/// The decisions of a runtime in the rounds of a trace, by the code that makes them in a run (HostResidency), without
/// memory and disk, of a trainer that uses one tensor after the other. Without costs its bytes are those of a run in
/// which each transfer ends before the next use; with costs, transfers end when the described disk has moved them.
///
///     auto replay = Replay::create(trace, {.host_budget = 8_GiB}).value();
///     ByteCount first = replay->round().value().read;    // nothing is in memory before
///
/// Owned by one thread. Memory grows with the tensors and uses of the trace.
class Replay : private HostResidency::Effects {
 public:
  /// At first all tensors on disk have their contents there. The trace outlives it.
  ///
  /// Errors: those of check_trace(); invalid_argument, for a rate that is not above 0; budget_too_small, for a tensor
  /// for which the budget has no room beside those that stay in memory.
  [[nodiscard]] static Result<std::unique_ptr<Replay>> create(const AccessTrace& trace,
                                                              const ReplayOptions& options);

  /// Errors: budget_too_small, with the use.
  [[nodiscard]] Result<ReplayedRound> round();
  /// Writes what is only in memory and has an extent; returns the bytes.
  ByteCount flush();

 private:
  Replay(const AccessTrace& trace, const ReplayOptions& options);
  Result<void> add_tensors();
  Result<void> add(const AccessTrace::Tensor& tensor);
  Result<void> put_on_disk(tiers::TensorId tensor);
  Result<void> use(const AccessTrace::Use& use);
  void wait_for_transfer(tiers::TensorId wanted);
  void hold(const AccessTrace::Tensor& tensor);
  void finish(const SimulatedDisk::Transfer& transfer);
  void finish_transfers();

  void load(tiers::TensorId tensor, bool verify) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void drop(tiers::TensorId) override {}

  const AccessTrace& trace_;
  const std::optional<ReplayCosts> costs_;
  tiers::Ledger ledger_;
  tiers::MemoryBudget budget_;
  tiers::TensorStore store_;
  ExtentAllocator extents_;
  HostResidency residency_;
  std::vector<tiers::TensorId> tensors_;  // by their numbers in the trace
  SimulatedDisk disk_;
  ReplayedRound round_;  // the current one
};

}  // namespace penstock::swap
