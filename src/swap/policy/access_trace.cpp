#include <penstock/swap/policy/access_trace.hpp>

#include <algorithm>

namespace penstock::swap {

void AccessTrace::use(tiers::TensorId tensor) {
  if (known_ && position_ == order_.size()) position_ = 0;  // the round goes on without having been ended
  if (known_ && order_[position_] != tensor) {
    known_ = false;
    order_.resize(position_);
    index_uses();
  }
  if (!known_) {
    uses_[tensor].push_back(order_.size());
    order_.push_back(tensor);
  }
  ++position_;
}

void AccessTrace::end_round() {
  if (position_ < order_.size()) {
    // The round was shorter than the last one: what was not used is forgotten.
    order_.resize(position_);
    index_uses();
  }
  known_ = !order_.empty();
  position_ = 0;
}

void AccessTrace::forget(tiers::TensorId tensor) {
  const auto now = order_.begin() + static_cast<std::ptrdiff_t>(position_);
  position_ -= static_cast<std::uint64_t>(std::count(order_.begin(), now, tensor));
  std::erase(order_, tensor);
  if (order_.empty()) known_ = false;
  index_uses();
}

void AccessTrace::index_uses() {
  uses_.clear();
  for (std::uint64_t i = 0; i < order_.size(); ++i) uses_[order_[i]].push_back(i);
}

std::uint64_t AccessTrace::next_use(tiers::TensorId tensor) const {
  if (!known_) return never;
  const auto found = uses_.find(tensor);
  if (found == uses_.end()) return never;
  const auto& positions = found->second;
  const auto next = std::lower_bound(positions.begin(), positions.end(), position_);
  return next != positions.end() ? *next - position_ : positions.front() + order_.size() - position_;
}

}  // namespace penstock::swap
