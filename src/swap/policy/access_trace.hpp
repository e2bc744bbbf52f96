#pragma once

#include <penstock/tiers/store/tensor.hpp>

#include <cstdint>
#include <limits>
#include <optional>
#include <vector>

namespace penstock::swap {

/// The order in which tensors are used in host memory. Training repeats it, so that one recorded round predicts the
/// next one.
///
/// A use has a *position*: the number of uses before it, counted over all rounds. Example: a round records
/// A B C. In the second round, after A was used, the position is 4, the next use of B is at 4, of C at 5 and
/// of A at 6. The position of a tensor's next use changes only when the tensor is used or revision() changes,
/// so that an index ordered by it needs no update in between.
///
/// Pure; owned by one thread.
class AccessTrace {
 public:
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  /// Records that `tensor` is used now. In the first round this extends the order, afterwards it advances
  /// along it. A use that differs from the recorded one starts a new recording: uses need not follow the trace.
  void use(tiers::TensorId tensor);
  /// Ends the round; the next one begins.
  void end_round();
  /// Removes the uses of `tensor`; the order of the others stays.
  void forget(tiers::TensorId tensor);

  [[nodiscard]] bool known() const { return known_; }
  /// Increases whenever positions that next_use() returned become invalid.
  [[nodiscard]] std::uint64_t revision() const { return revision_; }
  /// The position of the next use of any tensor.
  [[nodiscard]] std::uint64_t position() const { return round_begin_ + index_; }
  /// The position of the next use of `tensor`; never, if the trace has none.
  [[nodiscard]] std::uint64_t next_use(tiers::TensorId tensor) const;
  /// Uses in a round.
  [[nodiscard]] std::uint64_t length() const { return order_.size(); }
  /// The tensor that is used at `position`, at most one round ahead; none where that tensor was forgotten.
  [[nodiscard]] std::optional<tiers::TensorId> at(std::uint64_t position) const;

 private:
  static constexpr tiers::TensorId forgotten{std::numeric_limits<std::uint64_t>::max()};

  void truncate(std::size_t length);
  void remove_forgotten();
  void index_uses();
  void skip_forgotten();

  std::vector<tiers::TensorId> order_;
  std::vector<std::vector<std::uint64_t>> uses_;  // by tensor: indices into order_, ascending
  std::uint64_t round_begin_ = 0;                 // position of order_[0] in this round
  std::size_t index_ = 0, forgotten_count_ = 0;
  std::uint64_t revision_ = 0;
  bool known_ = false;
};

}  // namespace penstock::swap
