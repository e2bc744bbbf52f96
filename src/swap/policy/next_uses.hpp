#pragma once

#include <penstock/swap/lease.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace penstock::swap {

/// The order in which tensors are used in host memory. Training repeats it, so that one recorded round predicts the
/// next one.
///
/// A use has a *position*: its place in the recorded round, counted over all rounds. Example: a round records A B C. In
/// the second round, after A was used, the position is 4, the next use of B is at 4, of C at 5 and of A at 6.
///
/// Uses of one round may change places, because threads that use tensors side by side meet in another order each time:
/// a use takes the first place of its tensor that is left in the round. The next round is predicted in the new order. A
/// use for which no place is left ends the prediction until end_round(). After the last use of a round that is not
/// ended, it begins again; if it ends before its last use then, it was a longer round, and that one is predicted.
///
/// The position of a tensor's next use changes only when the tensor is used or revision() changes, so that an index
/// ordered by it needs no update in between. It is less than two rounds after position().
///
/// Pure; owned by one thread.
class NextUses {
 public:
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  struct Use {
    tiers::TensorId tensor{};
    Access access = Access::read;
  };

  /// Records that `tensor` is used now. Returns the position of the use that was predicted; never, if none was.
  std::uint64_t use(tiers::TensorId tensor, Access access);
  /// Ends the round; the next one begins.
  void end_round();
  /// Predicts that the round that begins now, and the next ones, have these uses, in this order.
  void predict(std::vector<Use> order);
  /// Removes the uses of `tensor`; the order of the others stays.
  void forget(tiers::TensorId tensor);

  [[nodiscard]] bool known() const { return known_; }
  /// Increases whenever positions that next_use() returned become invalid.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }
  /// The position of the first use of the round that has not happened.
  [[nodiscard]] std::uint64_t position() const { return round_begin_ + index_; }
  /// The position of the next use of `tensor`; never, if the trace has none.
  [[nodiscard]] std::uint64_t next_use(tiers::TensorId tensor) const;
  /// Whether that use overwrites the tensor, so that its contents are not needed before.
  [[nodiscard]] bool is_overwritten_next(tiers::TensorId tensor) const;
  /// The uses of `tensor` that have not happened and are predicted before `position`, at most one round ahead.
  [[nodiscard]] std::uint64_t uses_before(tiers::TensorId tensor, std::uint64_t position) const;
  /// The position of the first use of this round.
  [[nodiscard]] std::uint64_t round_begin() const { return round_begin_; }
  /// The tensor of a use of the recorded round, by its place; none, if it was forgotten.
  [[nodiscard]] std::optional<tiers::TensorId> in_round(std::uint64_t place) const {
    const tiers::TensorId tensor = order_[place].tensor;
    return tensor == forgotten ? std::nullopt : std::optional(tensor);
  }
  /// Uses in a round.
  [[nodiscard]] std::uint64_t length() const { return order_.size(); }
  /// The tensor that is used at `position`, at most one round ahead; none where that use has happened, or its tensor
  /// was forgotten.
  [[nodiscard]] std::optional<tiers::TensorId> at(std::uint64_t position) const;

 private:
  static constexpr tiers::TensorId forgotten{std::numeric_limits<std::uint64_t>::max()};

  /// The uses of one tensor.
  struct Uses {
    std::vector<std::uint64_t> places;  // indices into order_, ascending
    std::uint64_t round = 0;            // of `happened`
    std::size_t happened = 0;           // how many of them have happened in that round
  };
  [[nodiscard]] std::size_t happened(const Uses& uses) const {
    return uses.round == round_ ? uses.happened : 0;
  }
  [[nodiscard]] Uses& uses_of(tiers::TensorId tensor);
  [[nodiscard]] bool is_over(std::size_t index) const {
    return order_[index].tensor == forgotten || happened_in_[index] == round_;
  }
  [[nodiscard]] bool take_place(tiers::TensorId tensor, Access access, std::uint64_t& place);
  void skip_past_uses();
  void begin_round();
  void adopt(std::vector<Use> order);
  void set_order(std::vector<Use> order);
  [[nodiscard]] std::vector<Use> sequence_of_round() const;
  [[nodiscard]] std::vector<Use> sequence_since_end();
  void repeat_round();
  void forget_earlier();

  std::vector<Use> order_;
  std::vector<std::uint64_t> happened_in_;  // by index into order_: the round in which the use happened last
  std::vector<Uses> uses_;                  // by tensor
  std::vector<std::uint64_t> sequence_;     // places in the order in which they were taken in this round
  std::vector<Use> earlier_;                // uses since end_round(), before the round began again
  std::uint64_t repeats_ = 0;               // how often it has
  std::uint64_t round_ = 1;
  std::uint64_t round_begin_ = 0;  // position of order_[0] in this round
  std::size_t index_ = 0, forgotten_count_ = 0;
  std::uint64_t revision_ = 0;
  bool known_ = false, reordered_ = false;
};

}  // namespace penstock::swap
