#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/residency/host_residency.hpp"
#include "swap/simulate/simulated_disks.hpp"
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
  /// One of the disks on which tensors are.
  struct Disk {
    DiskRates rates;
    double weight = 1;    ///< > 0; it gets weight / (sum of all weights) of the bytes, as PathOptions::weight
    ByteCount endurance;  ///< that its maker lets be written (TBW); 0: not given. Takes no time
  };
  std::vector<Disk> disks;  ///< one or more
  /// Bytes a second at which the trainer goes through a tensor of each purpose while it holds it; 0: in no time.
  std::array<double, tiers::purpose_count> use{};
  /// The trainer and an update beside it go at half of these rates while both hold tensors.
  bool shared_processor = false;
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
  /// As in an engine, the update of a round (is_update()) runs beside the next round's uses: reads of a shard wait
  /// until it is updated, and writes of gradients until all of them are.
  bool update_beside = false;
  /// At each use its thread asks for so many of its next tensors that are dropped after their use, as an engine does
  /// for tiles; with `update_beside`, at its first gradient also for those of the update.
  std::uint32_t dropped_ahead = 0;
};

/// Whether the use is one of an engine's update: any of an optimizer tile, reads of gradients and writes of shards.
[[nodiscard]] bool is_update(const AccessTrace& trace, const AccessTrace::Use& use);

/// What a round has moved, and with ReplayCosts the seconds that it has taken: `seconds` is the sum of the next four.
struct ReplayedRound {
  ByteCount read, written;
  double seconds = 0;
  double used = 0;               ///< in which the trainer held a tensor
  double waited_for_loads = 0;   ///< of what it asked for
  double waited_for_room = 0;    ///< until something else had left memory, or was loaded
  double waited_for_update = 0;  ///< with ReplayOptions::update_beside: that of the round before
  double update = 0;             ///< in which that update ran
  std::vector<SimulatedDisks::Use> disks = {};  ///< what each disk did; without costs there is one
  [[nodiscard]] ByteCount total() const { return read + written; }
};

/// The decisions of a runtime in the rounds of a trace, by the code that makes them in a run (HostResidency), without
/// memory and disk, of a trainer that uses one tensor after the other, and of an update that does, too, and holds the
/// gradient and the shard of a flat while it uses the flat's tiles. Without costs its bytes are those of a run in which
/// each transfer ends before the next use; with costs, transfers end when the described disks have moved them.
///
///     auto replay = Replay::create(trace, {.host_budget = 8_GiB}).value();
///     ByteCount first = replay->round().value().read;    // nothing is in memory before
///
/// Owned by one thread. Memory grows with the tensors and uses of the trace.
class Replay : private HostResidency::Effects {
 public:
  /// At first all tensors have contents, those on disk there. The trace outlives it.
  ///
  /// Errors: those of check_trace(); invalid_argument, for costs without a disk, and for a rate or weight that is not
  /// above 0; budget_too_small, for a tensor
  /// for which the budget has no room beside those that stay in memory.
  [[nodiscard]] static Result<std::unique_ptr<Replay>> create(const AccessTrace& trace,
                                                              const ReplayOptions& options);

  /// The trainer's uses; with `update_beside` those of the last round's update go on meanwhile, and end. Errors:
  /// budget_too_small, with the use.
  [[nodiscard]] Result<ReplayedRound> round();
  /// Writes what is only in memory and has an extent; returns the bytes.
  ByteCount flush();

 private:
  /// Makes uses, one after the other.
  struct Thread {
    std::vector<std::uint32_t> uses;  // their numbers in the trace
    std::vector<std::size_t> dropped =
        {};                // of `uses`, those of tensors on disk that are dropped after their use
    std::size_t next = 0;  // of `uses`
    std::optional<RequestId> request = {};  // for it
    bool computes = false;                  // holds it
    double left = 0;                        // seconds, if no other computes
    std::vector<AccessTrace::Use> held = {};

    [[nodiscard]] bool is_done() const { return next == uses.size(); }
  };

  Replay(const AccessTrace& trace, const ReplayOptions& options);
  Result<void> add_tensors();
  Result<void> add(const AccessTrace::Tensor& tensor);
  Result<void> put_on_disk(tiers::TensorId tensor);
  Result<void> fill_memory();
  void divide_uses(bool update_beside);
  Result<void> go_on();
  Result<bool> begin_use(Thread& thread);
  void ask_ahead(const Thread& thread, std::size_t from);
  void end_use(Thread& thread);
  void release(const AccessTrace::Use& use);
  void pass_time();
  void account(double seconds, bool is_loaded);
  [[nodiscard]] const AccessTrace::Use& use_of(const Thread& thread) const;
  [[nodiscard]] double seconds_of(const AccessTrace::Tensor& tensor) const;
  [[nodiscard]] bool waits_for_update(const AccessTrace::Use& use) const;
  [[nodiscard]] bool begins_flat(std::size_t update_use) const;
  void finish(const SimulatedDisks::Transfer& transfer);
  void finish_transfers();

  void load(tiers::TensorId tensor, bool verify) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void drop(tiers::TensorId) override {}

  const AccessTrace& trace_;
  const std::optional<ReplayCosts> costs_;
  const std::uint32_t dropped_ahead_;
  tiers::Ledger ledger_;
  tiers::MemoryBudget budget_;
  tiers::TensorStore store_;
  ExtentAllocator extents_;
  HostResidency residency_;
  std::vector<tiers::TensorId> tensors_;  // by their numbers in the trace
  SimulatedDisks disks_;
  Thread trainer_, update_;
  bool has_gradient_ = false;  // in this round
  /// By tensor of the trace: the number of the update's use with which its flat ends; 0: it is not in an update.
  std::vector<std::size_t> updated_before_;
  ReplayedRound round_;  // the current one
};

}  // namespace penstock::swap
