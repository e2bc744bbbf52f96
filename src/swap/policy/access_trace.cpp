#include "swap/policy/access_trace.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

void AccessTrace::use(TensorId tensor) {
  if (known_) {
    skip_forgotten();
    if (order_[index_] != tensor) {
      known_ = false;
      truncate(index_);
    }
  }
  if (!known_) {
    const std::size_t number = slot_of(tensor);
    if (number >= uses_.size()) uses_.resize(number + 1);
    uses_[number].push_back(order_.size());
    order_.push_back(tensor);
  }
  ++index_;
}

/// Advances to the next use whose tensor still exists; at the end of the round, in the next round. Requires an order
/// with such a use.
void AccessTrace::skip_forgotten() {
  while (true) {
    if (index_ == order_.size()) {  // the round continues without end_round()
      round_begin_ += order_.size();
      index_ = 0;
    }
    if (order_[index_] != forgotten) return;
    ++index_;
  }
}

void AccessTrace::end_round() {
  if (known_) {
    while (index_ < order_.size() && order_[index_] == forgotten) ++index_;
  }
  if (index_ < order_.size()) truncate(index_);  // the round was shorter than the one before it
  round_begin_ += order_.size();
  index_ = 0;
  const bool was_known = std::exchange(known_, order_.size() > forgotten_count_);
  if (forgotten_count_ * 2 > order_.size()) remove_forgotten();
  if (!was_known) ++revision_;
}

void AccessTrace::forget(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= uses_.size() || uses_[number].empty()) return;
  for (const std::uint64_t use : uses_[number]) order_[use] = forgotten;
  forgotten_count_ += uses_[number].size();
  uses_[number].clear();
  if (forgotten_count_ == order_.size()) {
    known_ = false;
    truncate(0);
  }
}

/// Drops the order from `length` on, and its prediction.
void AccessTrace::truncate(std::size_t length) {
  order_.resize(length);
  remove_forgotten();
}

void AccessTrace::remove_forgotten() {
  const auto now = order_.begin() + static_cast<std::ptrdiff_t>(std::min(index_, order_.size()));
  index_ = static_cast<std::size_t>(now - order_.begin() - std::count(order_.begin(), now, forgotten));
  std::erase(order_, forgotten);
  forgotten_count_ = 0;
  index_uses();
  ++revision_;
}

void AccessTrace::index_uses() {
  for (auto& uses : uses_) uses.clear();
  for (std::uint64_t i = 0; i < order_.size(); ++i) {
    uses_[slot_of(order_[i])].push_back(i);
  }
}

std::uint64_t AccessTrace::next_use(TensorId tensor) const {
  const std::size_t number = slot_of(tensor);
  if (!known_ || number >= uses_.size() || uses_[number].empty()) return never;
  const auto& uses = uses_[number];
  const auto next = std::lower_bound(uses.begin(), uses.end(), index_);
  return round_begin_ + (next != uses.end() ? *next : uses.front() + order_.size());
}

std::optional<TensorId> AccessTrace::at(std::uint64_t position) const {
  const TensorId tensor = order_[(position - round_begin_) % order_.size()];
  return tensor == forgotten ? std::nullopt : std::optional(tensor);
}

}  // namespace penstock::swap
