#include "swap/policy/prefetch_policy.hpp"

#include "tiers/store/tensor_slot.hpp"

#include <algorithm>

namespace penstock::swap {

using tiers::slot_of;
using tiers::TensorId;

void BytesByUse::add(std::uint64_t position, std::int64_t bytes) {
  const std::uint64_t length = sums_.size() - 1;
  for (std::uint64_t i = position % length + 1; i <= length; i += i & -i) {
    sums_[i] += static_cast<std::uint64_t>(bytes);  // unsigned: a negative change wraps around
  }
}

std::uint64_t BytesByUse::prefix(std::uint64_t count) const {
  std::uint64_t sum = 0;
  for (std::uint64_t i = count; i > 0; i -= i & -i) sum += sums_[i];
  return sum;
}

ByteCount BytesByUse::sum(std::uint64_t from, std::uint64_t to) const {
  const std::uint64_t length = sums_.empty() ? 0 : sums_.size() - 1;
  if (length == 0 || from >= to) return {};
  if (to - from >= length) return ByteCount(prefix(length));
  const std::uint64_t first = from % length, last = first + (to - from);
  if (last <= length) return ByteCount(prefix(last) - prefix(first));
  return ByteCount(prefix(length) - prefix(first) + prefix(last - length));
}

PrefetchPolicy::Entry& PrefetchPolicy::entry(TensorId tensor) {
  const std::size_t number = slot_of(tensor);
  if (number >= entries_.size()) entries_.resize(number + 1);
  entries_[number].tensor = tensor;
  return entries_[number];
}

/// An awaited tensor counts as the next one used.
std::uint64_t PrefetchPolicy::use_of(TensorId tensor, const PrefetchFacts& facts) const {
  return facts.awaited ? next_uses_.position() : next_uses_.next_use(tensor);
}

void PrefetchPolicy::count(const Entry& entry, int sign) {
  const PrefetchFacts& facts = entry.facts;
  const std::int64_t bytes = sign * static_cast<std::int64_t>(facts.room.value());
  const auto add = [bytes](ByteCount& sum) {
    sum = ByteCount(sum.value() + static_cast<std::uint64_t>(bytes));
  };
  if (facts.awaited) {
    if (facts.lacks_room) add(awaited_lacking_);
    return;
  }
  if (facts.evictable) add(evictable_total_);
  if (entry.use == NextUses::never) return;
  if (facts.lacks_room) lacking_.add(entry.use, bytes);
  if (facts.evictable) evictable_.add(entry.use, bytes);
}

void PrefetchPolicy::remove(Queue& queue, std::optional<QueueRank>& rank) {
  if (!rank) return;
  queue.erase(*rank);
  rank.reset();
}

/// Updates the tensor's entries in the queues.
void PrefetchPolicy::enqueue(TensorId tensor, Entry& entry) {
  const PrefetchFacts& facts = entry.facts;
  const auto place = [&](Queue& queue, std::optional<QueueRank>& rank,
                         const std::optional<QueueRank>& wanted) {
    if (rank == wanted) return;
    remove(queue, rank);
    if (wanted) queue.insert(*wanted);
    rank = wanted;
  };
  const std::uint64_t use = use_of(tensor, facts);
  const bool along = facts.loadable && facts.retained && use != NextUses::never;
  place(along_trace_, entry.along_trace, along ? std::optional(QueueRank{use, 0, tensor}) : std::nullopt);
  const bool requested = entry.requested && facts.loadable;
  place(requested_, entry.requested,
        requested ? std::optional(QueueRank{use, entry.requested->sequence, tensor}) : std::nullopt);
  if (!facts.loadable) remove(hinted_next_, entry.hinted_next);
}

void PrefetchPolicy::update(TensorId tensor, const PrefetchFacts& facts) {
  Entry& known = entry(tensor);
  const std::uint64_t use = next_uses_.next_use(tensor);
  if (known.facts == facts && known.use == use) return;
  count(known, -1);
  known.facts = facts;
  known.use = use;
  count(known, +1);
  enqueue(tensor, known);
}

void PrefetchPolicy::rebuild() {
  // The next use of a tensor is less than two rounds away.
  lacking_.reset(next_uses_.length() * 2);
  evictable_.reset(next_uses_.length() * 2);
  awaited_lacking_ = evictable_total_ = {};
  restart_window();
  for (Entry& known : entries_) {
    known.use = next_uses_.next_use(known.tensor);
    count(known, +1);
    enqueue(known.tensor, known);
  }
}

void PrefetchPolicy::advance(TensorId used, std::uint64_t position) {
  if (!next_uses_.known()) return;
  if (position < window_end_) window_bytes_ -= entry(used).facts.payload;
  window_begin_ = next_uses_.position();
  if (window_end_ < window_begin_) restart_window();
  extend_window();
}

void PrefetchPolicy::forget(TensorId tensor) {
  window_bytes_ -= entry(tensor).facts.payload * next_uses_.uses_before(tensor, window_end_);
}

void PrefetchPolicy::restart_window() {
  window_begin_ = window_end_ = next_uses_.position();
  window_bytes_ = {};
}

void PrefetchPolicy::extend_window() {
  while (window_end_ < window_begin_ + next_uses_.length()) {
    const auto tensor = next_uses_.at(window_end_);
    const ByteCount payload = tensor ? entry(*tensor).facts.payload : ByteCount();
    if (window_bytes_ + payload > lookahead_) return;
    window_bytes_ += payload;
    ++window_end_;
  }
}

void PrefetchPolicy::request(TensorId tensor, Hint hint) {
  Entry& known = entry(tensor);
  if (!known.facts.loadable) return;
  if (hint == Hint::next && !known.hinted_next) {
    known.hinted_next = QueueRank{0, next_sequence_++, tensor};
    hinted_next_.insert(*known.hinted_next);
  }
  if (known.requested) return;
  known.requested = QueueRank{use_of(tensor, known.facts), next_sequence_++, tensor};
  requested_.insert(*known.requested);
}

void PrefetchPolicy::withdraw(TensorId tensor) {
  Entry& known = entry(tensor);
  remove(requested_, known.requested);
  remove(hinted_next_, known.hinted_next);
}

void PrefetchPolicy::withdraw_all() {
  for (const QueueRank& rank : requested_) entry(rank.tensor).requested.reset();
  for (const QueueRank& rank : hinted_next_) entry(rank.tensor).hinted_next.reset();
  requested_.clear();
  hinted_next_.clear();
}

std::optional<TensorId> PrefetchPolicy::next_of_hints(ByteCount free) const {
  if (hinted_next_.empty()) return std::nullopt;
  const TensorId tensor = hinted_next_.begin()->tensor;
  const PrefetchFacts& facts = entries_[slot_of(tensor)].facts;
  const bool is_counted = facts.awaited && facts.lacks_room;
  if (free < awaited_lacking_ + (is_counted ? ByteCount() : facts.room)) return std::nullopt;
  return tensor;
}

std::optional<TensorId> PrefetchPolicy::next() const {
  const QueueRank* const requested = requested_.empty() ? nullptr : &*requested_.begin();
  const QueueRank* along = along_trace_.empty() ? nullptr : &*along_trace_.begin();
  if (along && along->use >= window_end_) along = nullptr;
  if (!requested && !along) return std::nullopt;
  if (!requested || (along && *along < *requested)) return along->tensor;
  return requested->tensor;
}

bool PrefetchPolicy::has_room(TensorId tensor, ByteCount free) const {
  const Entry& known = entries_[slot_of(tensor)];
  const std::uint64_t now = next_uses_.position(), from = evicts_from(tensor);
  const ByteCount room = free + evictable_total_ - evictable_.sum(now, from);
  // No other use is known to be sooner than that of a tensor without a known use.
  if (from == NextUses::never) return room >= known.facts.room + awaited_lacking_;
  ByteCount needed = known.facts.room + awaited_lacking_;
  if (known.facts.awaited) {
    if (known.facts.lacks_room) needed -= known.facts.room;  // `needed` includes the tensor itself
  } else {
    needed += lacking_.sum(now, from - 1);
  }
  return room >= needed;
}

std::uint64_t PrefetchPolicy::evicts_from(TensorId tensor) const {
  const std::uint64_t use = use_of(tensor, entries_[slot_of(tensor)].facts);
  return use == NextUses::never ? use : use + 1;
}

}  // namespace penstock::swap
