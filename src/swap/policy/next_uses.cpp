#include "swap/policy/access_trace.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

AccessTrace::Uses& AccessTrace::uses_of(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= uses_.size()) uses_.resize(number + 1);
  return uses_[number];
}

std::uint64_t AccessTrace::use(TensorId tensor) {
  if (known_) {
    skip_past_uses();
    if (index_ == order_.size()) {  // the round continues without end_round()
      begin_round();
      skip_past_uses();
    }
    if (std::uint64_t place = 0; take_place(tensor, place)) return round_begin_ + place;
    known_ = false;
    adopt(sequence_of_round());
  }
  uses_of(tensor).places.push_back(order_.size());
  order_.push_back(tensor);
  happened_in_.push_back(round_);
  index_ = order_.size();
  return never;
}

/// Takes the first place of `tensor` that is left in the round. False if none is.
bool AccessTrace::take_place(TensorId tensor, std::uint64_t& place) {
  Uses& uses = uses_of(tensor);
  uses.happened = happened(uses);
  uses.round = round_;
  if (uses.happened == uses.places.size()) return false;
  place = uses.places[uses.happened++];
  happened_in_[place] = round_;
  sequence_.push_back(place);
  reordered_ |= place != index_;
  skip_past_uses();
  return true;
}

void AccessTrace::skip_past_uses() {
  while (index_ < order_.size() && is_over(index_)) ++index_;
}

void AccessTrace::begin_round() {
  if (reordered_) adopt(sequence_of_round());
  round_begin_ += order_.size();
  index_ = 0;
  ++round_;
  sequence_.clear();
}

void AccessTrace::end_round() {
  if (known_) {
    skip_past_uses();
    reordered_ |= index_ < order_.size();  // the round was shorter than the one before it
  }
  if (forgotten_count_ * 2 > order_.size() && !reordered_) {
    auto order = std::exchange(order_, {});
    std::erase(order, forgotten);
    adopt(std::move(order));
  }
  begin_round();
  if (!std::exchange(known_, order_.size() > forgotten_count_)) ++revision_;
}

/// The uses of this round in the order in which they happened.
std::vector<TensorId> AccessTrace::sequence_of_round() const {
  std::vector<TensorId> sequence;
  for (const std::uint64_t place : sequence_) {
    if (order_[place] != forgotten) sequence.push_back(order_[place]);
  }
  return sequence;
}

void AccessTrace::forget(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= uses_.size() || uses_[number].places.empty()) return;
  for (const std::uint64_t use : uses_[number].places) order_[use] = forgotten;
  forgotten_count_ += uses_[number].places.size();
  uses_[number] = {};
  if (forgotten_count_ == order_.size()) {
    known_ = false;
    adopt({});
  }
}

/// Replaces the order by one whose uses have all happened in this round.
void AccessTrace::adopt(std::vector<TensorId> order) {
  for (Uses& uses : uses_) uses.places.clear();
  order_ = std::move(order);
  happened_in_.assign(order_.size(), round_);
  for (std::uint64_t i = 0; i < order_.size(); ++i) {
    Uses& uses = uses_of(order_[i]);
    uses.places.push_back(i);
    uses.happened = uses.places.size();
    uses.round = round_;
  }
  index_ = order_.size();
  forgotten_count_ = 0;
  reordered_ = false;
  ++revision_;
}

std::uint64_t AccessTrace::next_use(TensorId tensor) const {
  const std::size_t number = slot_of(tensor);
  if (!known_ || number >= uses_.size() || uses_[number].places.empty()) return never;
  const Uses& uses = uses_[number];
  const std::size_t next = happened(uses);
  return round_begin_ + (next < uses.places.size() ? uses.places[next] : uses.places.front() + order_.size());
}

std::uint64_t AccessTrace::uses_before(TensorId tensor, std::uint64_t position) const {
  const std::size_t number = slot_of(tensor);
  if (!known_ || number >= uses_.size()) return 0;
  const Uses& uses = uses_[number];
  const auto places_before = [&](std::uint64_t index) {
    const auto end = std::lower_bound(uses.places.begin(), uses.places.end(), index);
    return static_cast<std::uint64_t>(end - uses.places.begin());
  };
  const std::uint64_t index = position - round_begin_, of_this_round = places_before(index);
  return of_this_round - std::min<std::uint64_t>(of_this_round, happened(uses)) +
         (index > order_.size() ? places_before(index - order_.size()) : 0);
}

std::optional<TensorId> AccessTrace::at(std::uint64_t position) const {
  const std::uint64_t index = position - round_begin_;
  const TensorId tensor = order_[index % order_.size()];
  const bool over = tensor == forgotten || (index < order_.size() && is_over(index));
  return over ? std::nullopt : std::optional(tensor);
}

}  // namespace penstock::swap
