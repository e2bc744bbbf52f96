#include "tiers/store/memory_budget.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <utility>

namespace penstock::tiers {

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->give_back(range_, purpose_);
}

MemoryBudget::MemoryBudget(Tier tier, ByteCount size, Ledger& ledger, Alignment granule, Ranges ranges)
    : tier_(tier),
      ledger_(ledger),
      size_(size.value() / granule.bytes() * granule.bytes()),
      granule_(granule),
      free_(size_),
      end_(size_) {
  if (ranges == Ranges::placed) ranges_.emplace(size_.value(), granule.bytes());
}

std::optional<RangeAllocator::Range> MemoryBudget::allocate(ByteCount size, RangeAllocator::End end) {
  if (ranges_) return ranges_->allocate(size.value(), end);
  const ByteCount length = round_up(size, granule_);
  if (length > free_) return std::nullopt;
  return RangeAllocator::Range{.begin = 0, .length = length.value()};
}

std::optional<Reservation> MemoryBudget::reserve(ByteCount size, Purpose purpose, RangeAllocator::End end) {
  const std::lock_guard lock(mutex_);
  const auto range = allocate(size, end);
  if (!range) return std::nullopt;
  ++changes_;
  free_ -= ByteCount(range->length);
  held_[static_cast<std::size_t>(purpose)] += ByteCount(range->length);
  ledger_.hold(tier_, purpose, ByteCount(range->length));
  return Reservation(*this, *range, size, purpose);
}

void MemoryBudget::give_back(RangeAllocator::Range range, Purpose purpose) {
  const std::lock_guard lock(mutex_);
  ++changes_;
  if (ranges_) ranges_->release(range);
  free_ += ByteCount(range.length);
  held_[static_cast<std::size_t>(purpose)] -= ByteCount(range.length);
  ledger_.give_back(tier_, purpose, ByteCount(range.length));
  take_beyond();
}

MemoryBudget::Neighbours MemoryBudget::free_beside(const Reservation& reserved) const {
  const std::lock_guard lock(mutex_);
  if (!ranges_) return {};
  const auto [before, after] = ranges_->free_beside(reserved.range_);
  return {ByteCount(before), ByteCount(after)};
}

void MemoryBudget::limit(ByteCount end) {
  const std::lock_guard lock(mutex_);
  PENSTOCK_CHECK(ranges_ && end <= size_);
  ++changes_;
  for (const RangeAllocator::Range& range : std::exchange(beyond_, {})) {
    ranges_->release(range);
    free_ += ByteCount(range.length);
  }
  end_ = end;
  take_beyond();
}

void MemoryBudget::take_beyond() {
  if (end_ == size_) return;
  for (const RangeAllocator::Range& range : ranges_->allocate_all_from(end_.value())) {
    free_ -= ByteCount(range.length);
    beyond_.push_back(range);
  }
}

std::vector<RangeAllocator::Range> MemoryBudget::free_beyond() const {
  const std::lock_guard lock(mutex_);
  std::vector<RangeAllocator::Range> sorted = beyond_, joined;
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
  for (const RangeAllocator::Range& range : sorted) {
    if (joined.empty() || joined.back().begin + joined.back().length != range.begin)
      joined.push_back(range);
    else
      joined.back().length += range.length;
  }
  return joined;
}

ByteCount MemoryBudget::end() const {
  const std::lock_guard lock(mutex_);
  return end_;
}

std::uint64_t MemoryBudget::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_;
}

ByteCount MemoryBudget::free() const {
  const std::lock_guard lock(mutex_);
  return free_;
}

Error MemoryBudget::too_small(ByteCount size) const {
  const std::string raised = raisable();
  const std::lock_guard lock(mutex_);
  Error error =
      Error(ErrorCode::budget_too_small, "MemoryBudget::reserve")
          .reason("the " + std::string(to_string(tier_)) + " budget of " + to_string(size_) +
                  (end_ < size_ ? ", limited to " + to_string(end_) + "," : "") + " is too small")
          .wanted(size)
          .got(to_exact_string(free_) + " free" +
               (ranges_ ? ", longest range " + to_exact_string(ByteCount(ranges_->largest_gap())) : ""));
  for (std::size_t i = 0; i < purpose_count; ++i) {
    if (held_[i].is_zero()) continue;
    error =
        std::move(error).note("holds   " + std::string(to_string(Purpose(i))) + " " + to_string(held_[i]));
  }
  const bool parked = !held_[static_cast<std::size_t>(Purpose::parked)].is_zero();
  return std::move(error).advice((parked ? "bring back what is parked, or raise " : "raise ") + raised +
                                 ", or use smaller units or tiles");
}

const char* MemoryBudget::raisable() const {
  const std::lock_guard lock(mutex_);
  return end_ < size_ ? "the limit of the memory" : "the budget";
}

}  // namespace penstock::tiers
