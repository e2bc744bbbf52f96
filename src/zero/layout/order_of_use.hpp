#pragma once

#include "zero/layout/shard_layout.hpp"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::zero {

/// The order in which the units of a step are acquired: as it is predicted, and as it is recorded, which predicts the
/// next step's.
///
/// Owned by one thread.
class OrderOfUse {
 public:
  /// `shards` outlives it. `units` predicts the first step.
  OrderOfUse(const ShardLayout& shards, std::vector<std::uint32_t> units);

  /// The changes of note().
  struct Noted {
    bool repeated = false;
    std::optional<std::uint32_t> acquiring_before;
    std::optional<std::vector<std::uint32_t>> order_before;  ///< set where another use was predicted
    bool was_expected = false;
  };
  /// The unit is used now. Noting it again before end_use() counts as the same use. A use that was not predicted ends
  /// the prediction until the next step.
  [[nodiscard]] Noted note(std::uint32_t unit);
  void undo(Noted use);
  void end_use() { acquiring_.reset(); }

  /// Whether the uses of this step are, and are predicted to be, those that expect() was given, which are rehearsed.
  /// Without expect() a step is expected to be as the last one that had it. Those that follow the 2^20 that
  /// unit_order() lists at most are taken for the expected ones.
  [[nodiscard]] bool is_expected() const { return is_expected_; }
  /// The unit that is used after `distance` others, as far as it is predicted.
  [[nodiscard]] std::optional<std::uint32_t> next(std::size_t distance) const;
  /// Uses from now until a unit needs `flat`, in the predicted order; the largest number when none does.
  [[nodiscard]] std::uint64_t uses_until_needed(std::uint32_t flat) const;

  /// By flat: whether a unit needs it before `first` and the units after now have used `distance` elements. DeepSpeed's
  /// rule, with whole flats instead of parameters: in the order that is not predicted none is.
  [[nodiscard]] std::vector<bool> needed_within(ElementCount distance, std::uint32_t first) const;

  [[nodiscard]] bool has_uses() const { return !recorded_.empty(); }
  /// Forgets the uses since the last step, which are no part of one.
  void forget_uses();
  /// Predicts `units`, unless the order of the last step is the better prediction: where it had as many uses, or where
  /// the step before it had the same order and the same `units` were expected, as of a trainer that recomputes units.
  void expect(std::vector<std::uint32_t> units);
  /// The order of this step predicts the next one's.
  void end_step();
  /// Predicts `units` for the next step.
  void restart(std::vector<std::uint32_t> units);

 private:
  void predict(std::vector<std::uint32_t> units);

  const ShardLayout& shards_;
  std::vector<std::uint32_t> predicted_;  // units
  std::vector<std::vector<std::size_t>>
      uses_;  // by flat: positions in predicted_ of the units that need it, ascending
  std::vector<std::uint32_t> predicted_for_step_;  // what predicted_ was when the last step had ended
  std::size_t expected_ = 0,
              expected_before_ = 0;  // uses that expect() was given, for this step and the last one
  bool is_expected_ = true;
  bool repeats_ = false;  // whether the last step had the order of the one before it
  std::vector<std::uint32_t> recorded_;
  std::size_t position_ = 0;
  std::optional<std::uint32_t> acquiring_;  // the unit of a use that has not ended
};

/// Predicts the units in the order of a step's acquires: forward and backward of each micro-batch, and of 2^20 acquires
/// or one micro-batch at most.
[[nodiscard]] std::vector<std::uint32_t> unit_order(std::size_t units, std::uint32_t micro_batches);

/// The acquires of a micro-batch whose backward begins again at the input of every `together`th unit (> 0): the forward
/// of the units from there to the next such one is computed again before their backward. That of the last of them is
/// part of its backward, so that with 1 it is unit_order().
[[nodiscard]] std::vector<std::uint32_t> order_with_recomputation(std::uint32_t units,
                                                                  std::uint32_t together);

/// Acquire number `i` of a step of `units` units, of any number of micro-batches.
[[nodiscard]] std::uint32_t unit_at(std::uint64_t i, std::uint64_t units);

}  // namespace penstock::zero
