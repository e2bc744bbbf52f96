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

std::optional<std::size_t> UpdateOrder::ahead(std::size_t distance) const {
  if (distance < taken_.size()) return taken_[distance];
  std::size_t left = distance - taken_.size();
  return find_waiting(left);
}

std::optional<std::size_t> UpdateOrder::to_read(std::size_t distance) {
  constexpr std::size_t most = 64, guessed_max = 8;
  if (distance >= most) return std::nullopt;
  if (distance < taken_.size()) return taken_[distance];
  std::size_t left = distance - taken_.size();
  if (const auto known = find_waiting(left)) return known;
  if (left >= guessed_max) return std::nullopt;
  for (auto flat = gradients_to_come_.end(); flat != gradients_to_come_.begin();) {
    --flat;
    if (is_known(*flat)) {
      flat = gradients_to_come_.erase(flat);
    } else if (left-- == 0) {
      return *flat;
    }
  }
  return std::nullopt;
}

void UpdateOrder::keep_first() {
  if (!taken_.empty()) return;
  std::size_t left = 0;
  const std::size_t flat = *find_waiting(left);
  states_[flat] = State::taken;
  waiting_.erase(flat);
  taken_.push_back(flat);
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

std::optional<std::size_t> UpdateOrder::find_waiting(std::size_t& left) const {
  for (const std::size_t flat : waiting_) {
    if (can_be_updated(flat) && left-- == 0) return flat;
  }
  return std::nullopt;
}

}  // namespace penstock::zero
