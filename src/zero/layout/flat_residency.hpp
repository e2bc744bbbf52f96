#pragma once

#include "tiers/store/memory_budget.hpp"
#include "zero/layout/order_of_use.hpp"
#include "zero/layout/reduction_queue.hpp"
#include "zero/layout/residency_limits.hpp"
#include "zero/layout/shard_layout.hpp"
#include "zero/layout/unit_needs.hpp"

#include <cstdint>
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

/// Which flats are gathered on the device, which full gradients are open, in a bucket or being reduced, and where each
/// of them is.
///
/// Every decision is made at a program point, from layout, budget and order of use alone, so that all ranks decide
/// the same and rehearse_steps() finds whether a budget suffices. It moves no bytes: it asks `Effects` to.
///
/// Owned by one thread.
class FlatResidency {
 public:
  /// Carries decisions out. When it returns an error the decision is undone, or kept for the same call: the caller
  /// makes it again, or abandons the step.
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
    /// Reduce the full gradients of `flats`, which are complete, by one collective.
    virtual Result<void> reduce(std::span<const std::uint32_t> flats) = 0;
    /// The range of `flat`'s full gradient is freed next; only operations that are already enqueued may still use it.
    virtual Result<void> finish_gradient(std::uint32_t flat) = 0;
  };

  /// The memory for gathered flats and for full gradients: one budget, or two if parameters are in place.
  struct Budgets {
    tiers::MemoryBudget& gathered;
    tiers::MemoryBudget& gradients;
  };

  /// `shards` and the budgets outlive it. A step is expected to acquire `units` in this order, and later ones in that
  /// of OrderOfUse::expect().
  FlatResidency(const ShardLayout& shards, DType dtype, InPlace in_place, const ResidencyLimits& limits,
                Budgets budgets, std::vector<std::uint32_t> units);

  /// A step begins. `units` predicts its order, unless that of the last step is the better prediction, see
  /// OrderOfUse::expect(). Units that were acquired since the last step, for an evaluation, are no part of the step:
  /// drops all that is not leased, so that the step begins as it was rehearsed. Errors: those of `effects`.
  Result<void> begin_step(std::vector<std::uint32_t> units, Effects& effects);

  /// The step that begins opens no gradients of `units`.
  void expect_no_gradients(std::span<const std::uint32_t> units);

  /// Gathers the flats of `unit` and, as far as the limits allow and there is room without dropping a flat that is
  /// needed sooner, those of the next units. Calling it again before lease() counts as the same use.
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
  /// One unit that uses the flat has written its gradient. True when it was the last: the gradient is put in a bucket.
  [[nodiscard]] bool close_gradient(std::uint32_t flat);
  /// Reduces the buckets that are closed. Call it after close_gradient() of a unit's flats. A bucket is closed where it
  /// has no room for the next gradients, has ReductionQueue::elements_enough, or has the last gradient of a
  /// micro-batch; where its memory is needed; and where one of its gradients is opened again. Errors: those of
  /// `effects`.
  Result<void> reduce_buckets(Effects& effects);
  /// Reduces what is in a bucket, and frees all ranges of full gradients.
  Result<void> finish_gradients(Effects& effects);
  /// The next acquire(), open_gradients() or begin_step() drops all flats that are not leased, unless clear() has.
  void begin_clear() { clearing_ = true; }
  /// Finishes gradients as above, drops all flats and frees all ranges. Errors: as drop_all().
  Result<void> clear(const char* operation, Effects& effects);
  /// Errors: failed_state, while a unit is leased, and nothing is dropped; those of `effects`.
  Result<void> drop_all(const char* operation, Effects& effects);
  /// The parameters are about to change: drops the flats that do. Where flats stay whole, frozen ones stay, and the
  /// others keep their ranges for the next step, so that what stays does not divide the free memory. Else all are
  /// dropped, so that the next step begins as it was rehearsed. Errors: as drop_all().
  Result<void> drop_for_update(const char* operation, Effects& effects);
  /// The flat is about to change: drops it, if it is gathered in place. Precondition: it is not leased. Errors: those
  /// of `effects`.
  Result<void> drop_in_place(std::uint32_t flat, Effects& effects);
  [[nodiscard]] bool is_leased(std::uint32_t flat) const { return places_[flat].leases > 0; }
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
    tiers::Reservation gathered,
        gradient;  // the former is also held by a flat that drop_for_update() has dropped
    std::uint32_t leases = 0;
    bool ahead = false;               // gathered, and not acquired since
    bool accumulated = false;         // a gradient of this step is complete
    std::uint32_t users = 0;          // units that reduce a gradient of it in this step's backward
    std::uint32_t pending_users = 0;  // units of this backward that have still to reduce; 0: none is open
  };

  Result<void> gather_unit(std::uint32_t unit, Effects& effects);
  Result<ByteCount> gather_needed(std::uint32_t unit, Effects& effects);
  [[nodiscard]] bool must_make_room_for_gradients(std::uint32_t unit) const;
  Result<void> gather_ahead(std::uint32_t unit, Effects& effects);
  /// For a flat that is needed `distance` uses after `unit`; not held if there is no room.
  Result<tiers::Reservation> reserve_ahead(std::uint32_t flat, std::uint32_t unit, std::size_t distance,
                                           Effects& effects);
  [[nodiscard]] bool may_hold_ahead(std::uint32_t flat, std::uint32_t unit, std::size_t distance) const;
  Result<void> drop_above_limit(std::uint32_t unit, Effects& effects);
  Result<void> drop_beyond_reuse(std::uint32_t unit, Effects& effects);
  Result<void> drop_unleased(Effects& effects);
  [[nodiscard]] std::vector<std::uint32_t> gradients_to_open(std::uint32_t unit) const;
  Result<ByteCount> reserve_gradients(std::uint32_t unit, std::span<const std::uint32_t> flats,
                                      Effects& effects);
  void free_unopened_gradients();
  Result<tiers::Reservation> reserve(ByteCount size, tiers::Purpose purpose, std::uint32_t for_unit,
                                     Effects& effects);
  [[nodiscard]] Error out_of_memory(const tiers::MemoryBudget& budget, ByteCount size) const;
  Result<void> take_and_gather(std::uint32_t flat, tiers::Reservation range, Effects& effects);
  Result<bool> drop_furthest(std::uint32_t for_unit, std::uint64_t distance_min, bool persistent,
                             Effects& effects);
  Result<void> drop(std::uint32_t flat, Effects& effects, bool keeps_range = false);
  Result<void> start_closed_buckets(Effects& effects);
  Result<void> finish_oldest_gradient(Effects& effects);
  Result<void> finish_reducing(Effects& effects);
  void no_longer_ahead(std::uint32_t flat);
  [[nodiscard]] bool needs(std::uint32_t unit, std::uint32_t flat) const;
  [[nodiscard]] ElementCount length(std::uint32_t flat) const { return shards_.flats()[flat].length; }
  [[nodiscard]] ByteCount size(std::uint32_t flat) const;
  [[nodiscard]] ByteCount gathered_size(std::uint32_t flat) const;
  [[nodiscard]] ReductionQueue::Size size_in_bucket(std::uint32_t flat) const;
  [[nodiscard]] ReductionQueue::Size next_gradients() const;
  /// Of gathered flats that neither `unit` nor a leased unit needs.
  [[nodiscard]] ElementCount spare_elements(std::uint32_t unit) const;
  [[nodiscard]] ElementCount elements_ahead(std::uint32_t unit) const;
  [[nodiscard]] bool has_one_budget() const { return &budgets_.gathered == &budgets_.gradients; }

  const ShardLayout& shards_;
  const DType dtype_;
  const InPlace in_place_;
  const ResidencyLimits limits_;
  const Budgets budgets_;
  const GradientShare gradient_share_;
  const std::vector<bool> persistent_;  // by flat
  std::vector<Place> places_;
  std::set<std::uint32_t> gathered_, open_;                            // flats; those with an open gradient
  ElementCount gathered_elements_, leased_elements_, ahead_elements_;  // of gathered flats
  ByteCount gathered_bytes_;
  ReductionQueue reducing_;
  OrderOfUse order_;
  std::uint32_t flats_with_gradient_ = 0, open_in_micro_batch_ = 0;  // of those, not closed yet
  bool clearing_ = false;  // drop_unleased() has begun and not ended
};

}  // namespace penstock::zero
