#pragma once

#include "tiers/store/memory_budget.hpp"
#include "zero/layout/shard_layout.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

namespace penstock::zero {

/// What a rank that is alone uses in host memory, where its device's memory is host memory too. It takes no room on the
/// device.
struct InPlace {
  bool parameters = false;  ///< gathered flats are leases of the parameter shards
  ByteCount lease_gap;      ///< host memory that each of these leases makes unusable, beside its own bytes
  bool first_gradients =
      false;  ///< the full gradient of a flat's first micro-batch in a step is the gradient shard
};

/// Which flats are gathered on the device, which full gradients are open or being reduced, and where each of them is.
///
/// Every decision is made at a program point, from layout, budget and order of use alone, so that all ranks decide
/// the same and rehearse_steps() predicts what the engine will do. It moves no bytes: it asks `Effects` to.
///
/// Owned by one thread.
class FlatResidency {
 public:
  /// Carries decisions out. When it returns an error the decision is undone; the caller may make the same call again.
  class Effects {
   public:
    virtual ~Effects() = default;
    /// Gather `flat` into the range that it has been given. If parameters are in place, the range only counts its
    /// bytes.
    virtual Result<void> gather(std::uint32_t flat) = 0;
    /// The range of `flat` is freed next; only operations that are already enqueued may still use it.
    virtual Result<void> drop(std::uint32_t flat) = 0;
    /// The full gradient of `flat` has been given a range; it has none if it is in place.
    virtual Result<void> open_gradient(std::uint32_t flat) = 0;
    /// The range of `flat`'s full gradient is freed next; only operations that are already enqueued may still use it.
    virtual Result<void> finish_gradient(std::uint32_t flat) = 0;
  };

  /// The memory for gathered flats and for full gradients: one budget, or two if parameters are in place.
  struct Budgets {
    tiers::MemoryBudget& gathered;
    tiers::MemoryBudget& gradients;
  };

  /// `shards` and the budgets outlive it. A step is expected to acquire `units` in this order, and each later one
  /// in the order of the last.
  FlatResidency(const ShardLayout& shards, DType dtype, InPlace in_place, Budgets budgets,
                std::vector<std::uint32_t> units);

  /// A step begins. `units` predicts its order; ignored if the last step acquired as many units, because its order is
  /// the better prediction. Units that were acquired since the last step, for an evaluation, are no part of the step:
  /// drops all that is not leased, so that the step begins as it was rehearsed. Errors: those of `effects`.
  Result<void> begin_step(std::vector<std::uint32_t> units, Effects& effects);

  /// The step that begins opens no gradients of `units`.
  void expect_no_gradients(std::span<const std::uint32_t> units);

  /// Gathers the flats of `unit` and, as far as there is room without dropping a flat that is needed sooner, those of
  /// the next unit. Calling it again before lease() counts as the same use.
  ///
  /// Errors: budget_too_small, naming the leased units and the open gradients, when ending some of them would make
  /// room; those of `effects`. A call that fails is no use.
  Result<void> acquire(std::uint32_t unit, Effects& effects);
  /// Keeps the unit's flats gathered until release(). Ends the unit's acquire().
  void lease(std::uint32_t unit);
  void release(std::uint32_t unit);

  /// Reserves room for the full gradients of those of the unit's flats that have none open. Errors: as acquire().
  Result<void> open_gradients(std::uint32_t unit, Effects& effects);
  [[nodiscard]] bool is_open(std::uint32_t flat) const { return places_[flat].pending_users > 0; }
  /// One unit that uses the flat has written its gradient. True when it was the last: the gradient is reduced now.
  [[nodiscard]] bool close_gradient(std::uint32_t flat);

  Result<void> finish_gradients(Effects& effects);
  /// Errors: failed_state, while a unit is leased, and nothing is dropped; those of `effects`.
  Result<void> drop_all(const char* operation, Effects& effects);
  /// The order of acquires of this step predicts the next step's.
  void end_step();
  /// Frees all ranges without Effects and predicts `units` for the next step. Precondition: no unit is leased, and no
  /// operation uses the ranges.
  void abandon_step(std::vector<std::uint32_t> units);
  /// Errors: failed_state, naming a leased unit.
  [[nodiscard]] Result<void> check_no_leases(const char* operation) const;

  /// Offsets of all ranges. Together with the order of use they determine every later decision.
  using Places = std::vector<std::uint64_t>;
  [[nodiscard]] Places places() const;

  [[nodiscard]] bool is_gathered(std::uint32_t flat) const { return gathered_.count(flat) > 0; }
  [[nodiscard]] const tiers::Reservation& gathered(std::uint32_t flat) const {
    return places_[flat].gathered;
  }
  [[nodiscard]] const tiers::Reservation& gradient(std::uint32_t flat) const {
    return places_[flat].gradient;
  }

 private:
  struct Place {
    tiers::Reservation gathered, gradient;
    std::uint32_t leases = 0;
    bool accumulated = false;         // a gradient of this step was reduced
    std::uint32_t users = 0;          // units that reduce a gradient of it in this step's backward
    std::uint32_t pending_users = 0;  // units of this backward that have still to reduce; 0: none is open
  };

  /// The changes of note_use().
  struct NotedUse {
    bool repeated = false;
    std::optional<std::uint32_t> acquiring_before;
    std::optional<std::vector<std::uint32_t>> order_before;
  };
  void set_order(std::vector<std::uint32_t> units);
  [[nodiscard]] NotedUse note_use(std::uint32_t unit);
  void undo(NotedUse use);
  Result<void> gather_unit(std::uint32_t unit, Effects& effects);
  Result<void> gather_needed(std::uint32_t unit, Effects& effects);
  Result<void> drop_unleased(Effects& effects);
  Result<void> gather_next(std::uint32_t unit, Effects& effects);
  using Ranges = std::vector<std::pair<std::uint32_t, tiers::Reservation>>;  // by flat
  Result<Ranges> reserve_gradients(std::uint32_t unit, Effects& effects);
  Result<tiers::Reservation> reserve(ByteCount size, tiers::Purpose purpose, std::uint32_t for_unit,
                                     Effects& effects);
  [[nodiscard]] Error out_of_memory(const tiers::MemoryBudget& budget, ByteCount size) const;
  Result<void> take_and_gather(std::uint32_t flat, tiers::Reservation range, Effects& effects);
  Result<bool> drop_furthest(std::uint32_t for_unit, Effects& effects);
  Result<void> drop(std::uint32_t flat, Effects& effects);
  Result<void> finish_oldest_gradient(Effects& effects);
  [[nodiscard]] bool is_reducing(std::uint32_t flat) const;
  [[nodiscard]] bool needs(std::uint32_t unit, std::uint32_t flat) const;
  [[nodiscard]] std::uint64_t uses_until_needed(std::uint32_t flat) const;
  [[nodiscard]] ByteCount size(std::uint32_t flat) const;
  [[nodiscard]] ByteCount gathered_size(std::uint32_t flat) const;

  const ShardLayout& shards_;
  const DType dtype_;
  const InPlace in_place_;
  const Budgets budgets_;
  std::vector<Place> places_;
  std::set<std::uint32_t> gathered_;    // flats
  std::deque<std::uint32_t> reducing_;  // flats whose full gradient still has its range, oldest first
  std::vector<std::uint32_t> order_;    // predicted, then recorded: units in the order of acquire
  std::vector<std::vector<std::size_t>>
      uses_;  // by flat: positions in order_ of the units that need it, ascending
  std::vector<std::uint32_t> order_of_step_;  // what order_ was when the last step had ended
  std::vector<std::uint32_t> recording_;
  std::size_t position_ = 0;
  bool clearing_ = false;                   // drop_unleased() has begun and not ended
  std::optional<std::uint32_t> acquiring_;  // the unit of an acquire() that has not come to its lease
};

/// Predicts the units in the order of a step's acquires: forward and backward of each micro-batch, and of 2^20 acquires
/// or one micro-batch at most.
[[nodiscard]] std::vector<std::uint32_t> unit_order(std::size_t units, std::uint32_t micro_batches);

/// The most that a step holds on the device.
struct DevicePeaks {
  ByteCount gathered, gradients;
};

/// Makes the decisions of steps without moving bytes: units acquired in unit_order(), each lease ended before the next
/// acquire, for every number of micro-batches up to the one after which decisions repeat, and at least
/// `micro_batches`. `budget` is that of the device: what is used in place is not limited.
///
/// Errors: budget_too_small.
[[nodiscard]] Result<DevicePeaks> rehearse_steps(const ShardLayout& shards, std::size_t units, DType dtype,
                                                 InPlace in_place, std::uint32_t micro_batches,
                                                 ByteCount budget);

/// The same for parameters that are used in place: whether `budget` bytes of host memory suffice for their leases.
///
/// Errors: budget_too_small.
[[nodiscard]] Result<void> rehearse_leases(const ShardLayout& shards, std::size_t units, DType dtype,
                                           InPlace in_place, ByteCount budget);

}  // namespace penstock::zero
