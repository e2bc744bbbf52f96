#pragma once

#include <penstock/tiers/store/tensor_store.hpp>

#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace penstock::swap {

/// The order in which tensors are used in host memory. Training repeats it, so that the first round makes
/// the future known: next_use() tells how far away a tensor's next use is.
///
/// Owned by whoever holds the coordinator's lock.
class AccessTrace {
 public:
  static constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();

  /// Notes that `tensor` is used now. While the round is not known, this records it; afterwards it advances
  /// along it. A use that differs from the recorded one starts a new recording: the trace is a forecast,
  /// never a rule.
  void use(tiers::TensorId tensor);
  /// The round ends here, and the next one begins.
  void end_round();
  /// `tensor` is used no more; the rest of the order stands.
  void forget(tiers::TensorId tensor);

  [[nodiscard]] bool known() const { return known_; }
  [[nodiscard]] std::uint64_t position() const { return position_; }
  /// How many uses from now on until `tensor` is used; never, when the trace does not know it.
  [[nodiscard]] std::uint64_t next_use(tiers::TensorId tensor) const;
  /// The tensor that is used `ahead` uses from now, when the round is known.
  [[nodiscard]] tiers::TensorId upcoming(std::uint64_t ahead) const {
    return order_[(position_ + ahead) % order_.size()];
  }
  [[nodiscard]] std::uint64_t length() const { return order_.size(); }

 private:
  void index_uses();

  std::vector<tiers::TensorId> order_;
  std::map<tiers::TensorId, std::vector<std::uint64_t>> uses_;  // positions, ascending
  std::uint64_t position_ = 0;
  bool known_ = false;
};

}  // namespace penstock::swap
