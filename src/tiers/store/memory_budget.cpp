#include "tiers/store/memory_budget.hpp"

namespace penstock::tiers {

Reservation::~Reservation() {
  if (budget_ != nullptr) budget_->give_back(range_, purpose_);
}

MemoryBudget::MemoryBudget(Tier tier, ByteCount size, Ledger& ledger, Alignment granule)
    : tier_(tier),
      ledger_(ledger),
      ranges_(size.value() / granule.bytes() * granule.bytes(), granule.bytes()) {}

std::optional<Reservation> MemoryBudget::reserve(ByteCount size, Purpose purpose, RangeAllocator::End end) {
  const std::lock_guard lock(mutex_);
  const auto range = ranges_.allocate(size.value(), end);
  if (!range) return std::nullopt;
  held_[static_cast<std::size_t>(purpose)] += ByteCount(range->length);
  ledger_.hold(tier_, purpose, ByteCount(range->length));
  return Reservation(*this, *range, size, purpose);
}

void MemoryBudget::give_back(RangeAllocator::Range range, Purpose purpose) {
  const std::lock_guard lock(mutex_);
  ranges_.release(range);
  held_[static_cast<std::size_t>(purpose)] -= ByteCount(range.length);
  ledger_.give_back(tier_, purpose, ByteCount(range.length));
}

ByteCount MemoryBudget::free() const {
  const std::lock_guard lock(mutex_);
  return ByteCount(ranges_.free_total());
}

Error MemoryBudget::too_small(ByteCount size) const {
  const std::lock_guard lock(mutex_);
  Error error = Error(ErrorCode::budget_too_small, "MemoryBudget::reserve")
                    .reason("the " + std::string(to_string(tier_)) + " budget of " +
                            to_string(ByteCount(ranges_.size())) + " is too small")
                    .wanted(size)
                    .got(to_string(ByteCount(ranges_.free_total())) + " free, longest range " +
                         to_string(ByteCount(ranges_.largest_gap())));
  for (std::size_t i = 0; i < purpose_count; ++i) {
    if (held_[i].is_zero()) continue;
    error =
        std::move(error).note("holds   " + std::string(to_string(Purpose(i))) + " " + to_string(held_[i]));
  }
  return std::move(error).advice("raise the budget, or use smaller units or tiles");
}

}  // namespace penstock::tiers
