#pragma once

#include <penstock/zero/layout/model_layout.hpp>
#include "tiers/store/memory_budget.hpp"

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace penstock::zero {

/// Which flats are gathered on the device, which full gradients are open or being reduced, and where each of them is.
///
/// Every decision is made at a program point, from layout, budget and order of use alone: all ranks decide the
/// same, and the planner, which rehearses a step, knows what the engine will do. It moves nothing: what a
/// decision needs done is asked of `Effects`.
///
/// Owned by one thread.
class FlatResidency {
 public:
  /// What must be seen to. After an error the decision is undone, and the same call, made again, comes to it
  /// again.
  class Effects {
   public:
    virtual ~Effects() = default;
    /// `flat` has a range from now on, which is to be filled.
    virtual Result<void> gather(std::uint32_t flat) = 0;
    /// Nothing but what has been enqueued uses the range of the gathered flat, which goes next.
    virtual Result<void> drop(std::uint32_t flat) = 0;
    /// The full gradient of `flat` has a range from now on.
    virtual Result<void> open_gradient(std::uint32_t flat) = 0;
    /// Wait until the full gradient of `flat` was accumulated; its range is freed next.
    virtual Result<void> finish_gradient(std::uint32_t flat) = 0;
  };

  /// `shards` and `budget` outlive it. A step is expected to acquire `units` in this order, and each later one
  /// in the order of the last.
  FlatResidency(const ShardLayout& shards, DType dtype, tiers::MemoryBudget& budget,
                std::vector<std::uint32_t> units);

  /// The step that begins acquires so many units in this order, unless the last one of its length had another.
  void expect(std::vector<std::uint32_t> units);

  /// Gathers what `unit` needs and, where there is room that nothing sooner needs, what the next unit needs.
  /// Made again before lease(), it is the same use.
  ///
  /// Errors: budget_too_small; those of `effects`.
  Result<void> acquire(std::uint32_t unit, Effects& effects);
  /// The unit's flats stay until release(); ends its acquire().
  void lease(std::uint32_t unit);
  void release(std::uint32_t unit);

  /// Room for the full gradients of the unit's flats, for those that have none open. Errors: as acquire().
  Result<void> open_gradients(std::uint32_t unit, Effects& effects);
  [[nodiscard]] bool is_open(std::uint32_t flat) const { return places_[flat].pending_users > 0; }
  /// One unit that uses the flat has written its gradient. True when it was the last: the gradient is reduced now.
  [[nodiscard]] bool close_gradient(std::uint32_t flat);

  Result<void> finish_gradients(Effects& effects);
  /// Errors: failed_state, while a unit is leased, and nothing is dropped; those of `effects`.
  Result<void> drop_all(Effects& effects);
  /// The order of use begins again.
  void end_step();

  /// What the decisions to come depend on, beside the order of use: where everything is.
  using Places = std::vector<std::uint64_t>;
  [[nodiscard]] Places places() const;

  [[nodiscard]] bool is_gathered(std::uint32_t flat) const { return places_[flat].gathered.held(); }
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
    std::uint32_t pending_users = 0;  // units of this backward that have still to reduce; 0: none is open
  };

  void note_use(std::uint32_t unit);
  Result<void> gather_next(std::uint32_t unit, Effects& effects);
  Result<tiers::Reservation> reserve(ByteCount size, tiers::Purpose purpose, std::uint32_t for_unit,
                                     Effects& effects);
  Result<void> take_and_gather(std::uint32_t flat, tiers::Reservation range, Effects& effects);
  Result<bool> drop_furthest(std::uint32_t for_unit, Effects& effects);
  Result<void> drop(std::uint32_t flat, Effects& effects);
  Result<void> finish_oldest_gradient(Effects& effects);
  [[nodiscard]] bool needs(std::uint32_t unit, std::uint32_t flat) const;
  [[nodiscard]] std::uint64_t uses_until_needed(std::uint32_t flat) const;
  [[nodiscard]] ByteCount size(std::uint32_t flat) const;

  const ShardLayout& shards_;
  const DType dtype_;
  tiers::MemoryBudget& budget_;
  std::vector<Place> places_;
  std::deque<std::uint32_t>
      reducing_;  // flats whose full gradient is live until it was accumulated, oldest first
  std::vector<std::uint32_t> order_;  // predicted, then recorded: units in the order of acquire
  std::vector<std::uint32_t> recording_;
  std::size_t position_ = 0;
  std::optional<std::uint32_t> acquiring_;  // the unit of an acquire() that has not come to its lease
};

/// Units in the order of a step's acquires: forward and backward of each micro-batch.
[[nodiscard]] std::vector<std::uint32_t> unit_order(std::size_t units, std::uint32_t micro_batches);

/// The most that a step holds on the device.
struct DevicePeaks {
  ByteCount gathered, gradients;
};

/// Runs the decisions of steps dry: units acquired in unit_order(), each lease ended before the next acquire,
/// for every number of micro-batches up to the one after which they repeat, and at least `micro_batches`.
///
/// Errors: budget_too_small, when `budget` does not do.
[[nodiscard]] Result<DevicePeaks> rehearse_steps(const ShardLayout& shards, std::size_t units, DType dtype,
                                                 std::uint32_t micro_batches, ByteCount budget);

}  // namespace penstock::zero
