#include "zero/engine/update_order.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

void UpdateOrder::begin(std::vector<bool> has_gradient) {
  has_gradient_ = std::move(has_gradient);
  states_.assign(has_gradient_.size(), State::to_come);
  waiting_.clear();
  taken_.clear();
  gradients_to_come_.clear();
  for (std::size_t flat = 0; flat < has_gradient_.size(); ++flat) {
    if (has_gradient_[flat]) gradients_to_come_.push_back(flat);
  }
  not_updated_ = 0;
}

void UpdateOrder::add(std::size_t flat) {
  states_[flat] = State::waits;
  waiting_.insert(flat);
  ++not_updated_;
}

std::optional<std::size_t> UpdateOrder::ahead(std::size_t distance) {
  while (taken_.size() <= distance) {
    const auto flat = find_waiting(states_.size());
    if (!flat) return std::nullopt;
    take(*flat);
    taken_.push_back(*flat);
  }
  return taken_[distance];
}

std::optional<std::size_t> UpdateOrder::to_read(std::size_t distance) {
  constexpr std::size_t guessed_max = 8;
  if (const auto known = ahead(distance)) return known;
  std::size_t left = distance - taken_.size();
  if (left >= guessed_max) return std::nullopt;
  for (auto flat = gradients_to_come_.end(); flat != gradients_to_come_.begin();) {
    --flat;
    if (states_[*flat] == State::taken || states_[*flat] == State::updated) {
      flat = gradients_to_come_.erase(flat);
    } else if (left-- == 0) {
      return *flat;
    }
  }
  return std::nullopt;
}

void UpdateOrder::prefer_sooner() {
  const auto sooner = find_waiting(taken_.front());
  if (!sooner) return;
  take(*sooner);
  taken_.push_front(*sooner);
}

void UpdateOrder::end(std::size_t flat) {
  states_[flat] = State::updated;
  --not_updated_;
}

void UpdateOrder::restart(const std::function<bool(std::size_t flat)>& has_begun) {
  taken_.clear();
  for (std::size_t flat = 0; flat < states_.size(); ++flat) {
    if (states_[flat] != State::taken) continue;
    if (has_begun(flat)) {
      taken_.push_back(flat);
    } else {
      states_[flat] = State::waits;
      waiting_.insert(flat);
    }
  }
}

std::optional<std::size_t> UpdateOrder::find_waiting(std::size_t end) const {
  for (const std::size_t flat : waiting_) {
    if (flat >= end) break;
    if (can_be_updated(flat)) return flat;
  }
  return std::nullopt;
}

void UpdateOrder::take(std::size_t flat) {
  states_[flat] = State::taken;
  waiting_.erase(flat);
}

}  // namespace penstock::zero
