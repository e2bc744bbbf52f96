#pragma once

#include "swap/path/extent_allocator.hpp"
#include "swap/residency/host_residency.hpp"
#include "swap/simulate/simulated_disks.hpp"
#include "swap/simulate/step_uses.hpp"
#include "tiers/store/memory_budget.hpp"
#include "tiers/store/tensor_store.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/tiers/store/ledger.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <limits>
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
    TransferCosts eviction = {};  ///< what Eviction::planned knows of its rates
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
  /// With `update_beside`: the update of a flat begins at its last gradient of a round, or its last shard if that
  /// gradient is elsewhere, beside the rest of the round; of those that wait, the first in the trace is the next.
  bool update_in_backward = false;
  /// At each use its thread asks for so many of its next tensors that are dropped after their use, as an engine does
  /// for tiles; with `update_beside`, at the first gradient of the last micro-batch also for those of the update.
  std::uint32_t dropped_ahead = 0;
  /// The most of these while some of them are of flats that are updated later.
  std::uint32_t dropped_ahead_later = std::numeric_limits<std::uint32_t>::max();
  /// With `update_in_backward`, of those of the update: so many once the last round's update has ended.
  std::uint32_t dropped_between = 0;
  /// With `update_beside`: while more stores are pending, the update begins no tile, as an engine's.
  std::size_t stores_max = std::numeric_limits<std::size_t>::max();
};

/// What a round has moved, and with ReplayCosts the seconds that it has taken: `seconds` is the sum of the next four.
struct ReplayedRound {
  struct Traffic {
    ByteCount read, written;
  };
  ByteCount read, written;
  double seconds = 0;
  double used = 0;               ///< in which the trainer held a tensor
  double waited_for_loads = 0;   ///< of what it asked for
  double waited_for_room = 0;    ///< until something else had left memory, or was loaded
  double waited_for_update = 0;  ///< with ReplayOptions::update_beside: that of the round before
  double update = 0;             ///< in which that update ran
  double update_used = 0;        ///< of these, in which it held a tile
  std::array<Traffic, tiers::purpose_count> by_purpose = {};  ///< of `read` and `written`
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
  /// above 0; budget_too_small, where there is no room beside what stays in memory for each other tensor and,
  /// with `update_beside`, for what the update of a flat holds together. A budget that has room may still be too small
  /// for a use, where memory has no gap that is long enough: round() says so.
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
    /// `uses_of_trace` outlives the thread.
    Thread(const std::vector<std::uint32_t>& uses_of_trace, const AccessTrace& trace);
    const std::vector<std::uint32_t>& uses;  // their numbers in the trace
    std::vector<std::size_t> dropped = {};   // of `uses`, those of tensors on disk that are dropped after use
    std::size_t next = 0, end = 0;           // of `uses`: the next one, and where those end that it makes now
    std::optional<RequestId> request = {};   // for the next one
    bool computes = false;                   // holds it
    double left = 0;                         // seconds, if no other computes
    std::vector<AccessTrace::Use> held = {};

    [[nodiscard]] bool is_done() const { return next == end; }
  };
  struct Flat {
    bool waits = false;          // for its update, or is being updated
    bool of_last_round = false;  // whether that is of the round before
  };

  Replay(const AccessTrace& trace, StepUses uses, const ReplayOptions& options);
  Result<void> add_tensors();
  Result<void> add(const AccessTrace::Tensor& tensor);
  Result<void> put_on_disk(tiers::TensorId tensor);
  Result<void> fill_memory();
  /// The flat is to be updated, of this round or of the one before.
  void add_flat(std::uint32_t number, bool of_last_round);
  void begin_flat();
  void end_flat();
  Result<void> go_on();
  Result<bool> begin_use(Thread& thread);
  /// Of the thread's tensors that are dropped after their use, prefetches those of its uses [from, end), at most
  /// `count`. Returns how many.
  std::uint32_t ask_ahead(const Thread& thread, std::size_t from, std::size_t end, std::uint32_t count);
  void ask_ahead(const Thread& thread);
  void ask_for_flats(std::uint32_t of_first, std::uint32_t of_all);
  void end_use(Thread& thread);
  void release(const AccessTrace::Use& use);
  void pass_time();
  void account(double seconds, bool is_loaded);
  [[nodiscard]] std::array<ReplayedRound::Traffic, tiers::purpose_count> traffic() const;
  [[nodiscard]] const AccessTrace::Use& use_of(const Thread& thread) const;
  [[nodiscard]] double seconds_of(const AccessTrace::Tensor& tensor) const;
  [[nodiscard]] bool must_wait(const Thread& thread, const AccessTrace::Use& use) const;
  [[nodiscard]] bool waits_for_update(const AccessTrace::Use& use) const;
  void finish(const SimulatedDisks::Transfer& transfer);
  void finish_transfers();

  void load(tiers::TensorId tensor, bool verify, bool urgent) override;
  void store(tiers::TensorId tensor, const tiers::Extent& place) override;
  void hasten(tiers::TensorId tensor) override { disks_.hasten(tensor); }
  void drop(tiers::TensorId) override {}

  const AccessTrace& trace_;
  const StepUses uses_;
  const std::optional<ReplayCosts> costs_;
  const std::uint32_t dropped_ahead_, dropped_ahead_later_, dropped_between_;
  const bool update_in_backward_;
  const std::size_t stores_max_;
  ByteCount enough_;  // of host memory, for every order
  tiers::Ledger ledger_;
  tiers::MemoryBudget budget_;
  tiers::TensorStore store_;
  ExtentAllocator extents_;
  HostResidency residency_;
  std::vector<tiers::TensorId> tensors_;  // by their numbers in the trace
  SimulatedDisks disks_;
  Thread trainer_, update_;
  std::vector<Flat> flats_;                        // those of uses_
  std::size_t next_added_ = 0;                     // of uses_.added_after
  std::uint32_t updating_ = 0;                     // the flat, unless update_ is done
  std::uint32_t first_waiting_ = 0;                // none before it waits
  std::uint32_t waiting_ = 0, of_last_round_ = 0;  // how many flats wait, and how many of the round before
  ReplayedRound round_;                            // the current one
};

}  // namespace penstock::swap
