#include "swap/policy/next_uses.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <iterator>
#include <utility>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

NextUses::Uses& NextUses::uses_of(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= uses_.size()) uses_.resize(number + 1);
  return uses_[number];
}

std::uint64_t NextUses::use(TensorId tensor, Access access) {
  if (known_) {
    skip_past_uses();
    if (index_ == order_.size()) {  // the round continues without end_round()
      repeat_round();
      skip_past_uses();
    }
    if (std::uint64_t place = 0; take_place(tensor, access, place)) return round_begin_ + place;
    known_ = false;
    adopt(sequence_since_end());
  }
  uses_of(tensor).places.push_back(order_.size());
  order_.push_back({tensor, access});
  happened_in_.push_back(round_);
  index_ = order_.size();
  return never;
}

/// Takes the first place of `tensor` that is left in the round. False if none is.
bool NextUses::take_place(TensorId tensor, Access access, std::uint64_t& place) {
  Uses& uses = uses_of(tensor);
  uses.happened = happened(uses);
  uses.round = round_;
  if (uses.happened == uses.places.size()) return false;
  place = uses.places[uses.happened++];
  happened_in_[place] = round_;
  order_[place].access = access;
  sequence_.push_back(place);
  reordered_ |= place != index_;
  skip_past_uses();
  return true;
}

void NextUses::skip_past_uses() {
  while (index_ < order_.size() && is_over(index_)) ++index_;
}

void NextUses::begin_round() {
  if (reordered_) adopt(sequence_of_round());
  round_begin_ += order_.size();
  index_ = 0;
  ++round_;
  sequence_.clear();
}

void NextUses::end_round() {
  if (known_) {
    skip_past_uses();
    const bool is_shorter = index_ < order_.size();  // than the one before it
    if (is_shorter && !earlier_.empty()) {
      adopt(sequence_since_end());
    } else {
      reordered_ |= is_shorter;
    }
  }
  forget_earlier();
  if (forgotten_count_ * 2 > order_.size() && !reordered_) {
    auto order = std::exchange(order_, {});
    std::erase_if(order, [](const Use& use) { return use.tensor == forgotten; });
    adopt(std::move(order));
  }
  begin_round();
  if (!std::exchange(known_, order_.size() > forgotten_count_)) ++revision_;
}

/// The uses of this round in the order in which they happened.
std::vector<NextUses::Use> NextUses::sequence_of_round() const {
  std::vector<Use> sequence;
  for (const std::uint64_t place : sequence_) {
    if (order_[place].tensor != forgotten) sequence.push_back(order_[place]);
  }
  return sequence;
}

/// The same since end_round().
std::vector<NextUses::Use> NextUses::sequence_since_end() {
  std::vector<Use> sequence = std::move(earlier_);
  std::ranges::copy(sequence_of_round(), std::back_inserter(sequence));
  forget_earlier();
  return sequence;
}

/// The round begins again without end_round().
void NextUses::repeat_round() {
  constexpr std::uint64_t repeats_max = 8;  // more: it is never ended
  if (++repeats_ > repeats_max) {
    earlier_.clear();
  } else {
    std::ranges::copy(sequence_of_round(), std::back_inserter(earlier_));
  }
  begin_round();
}

void NextUses::forget_earlier() {
  earlier_.clear();
  repeats_ = 0;
}

void NextUses::forget(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= uses_.size() || uses_[number].places.empty()) return;
  for (const std::uint64_t use : uses_[number].places) order_[use].tensor = forgotten;
  forgotten_count_ += uses_[number].places.size();
  uses_[number] = {};
  earlier_.clear();  // it may have uses of the tensor
  if (forgotten_count_ == order_.size()) {
    known_ = false;
    adopt({});
  }
}

/// Replaces the order by one whose uses have all happened in this round.
void NextUses::adopt(std::vector<Use> order) {
  set_order(std::move(order));
  index_ = order_.size();
}

void NextUses::set_order(std::vector<Use> order) {
  for (Uses& uses : uses_) uses.places.clear();
  order_ = std::move(order);
  happened_in_.assign(order_.size(), round_);
  for (std::uint64_t i = 0; i < order_.size(); ++i) {
    Uses& uses = uses_of(order_[i].tensor);
    uses.places.push_back(i);
    uses.happened = uses.places.size();
    uses.round = round_;
  }
  forgotten_count_ = 0;
  reordered_ = false;
  ++revision_;
}

void NextUses::predict(std::vector<Use> order) {
  round_begin_ += order_.size();
  set_order(std::move(order));
  ++round_;  // in which none of them has happened
  sequence_.clear();
  index_ = 0;
  forget_earlier();
  known_ = !order_.empty();
}

std::uint64_t NextUses::next_use(TensorId tensor) const {
  const std::size_t number = slot_of(tensor);
  if (!known_ || number >= uses_.size() || uses_[number].places.empty()) return never;
  const Uses& uses = uses_[number];
  const std::size_t next = happened(uses);
  return round_begin_ + (next < uses.places.size() ? uses.places[next] : uses.places.front() + order_.size());
}

bool NextUses::is_overwritten_next(TensorId tensor) const {
  const std::uint64_t next = next_use(tensor);
  return next != never && order_[(next - round_begin_) % order_.size()].access == Access::overwrite;
}

std::uint64_t NextUses::uses_before(TensorId tensor, std::uint64_t position) const {
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

std::optional<TensorId> NextUses::at(std::uint64_t position) const {
  const std::uint64_t index = position - round_begin_;
  const TensorId tensor = order_[index % order_.size()].tensor;
  const bool over = tensor == forgotten || (index < order_.size() && is_over(index));
  return over ? std::nullopt : std::optional(tensor);
}

}  // namespace penstock::swap
