#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/store/ledger.hpp>
#include <penstock/tiers/tier.hpp>
#include "tiers/store/range_allocator.hpp"

#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tiers {

class MemoryBudget;

/// Owns an address range of a budget and frees it on destruction. Move-only; the budget outlives it.
class Reservation {
 public:
  Reservation() = default;
  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    Reservation dropped(std::move(*this));
    swap(other);
    return *this;
  }
  ~Reservation();

  [[nodiscard]] bool held() const { return budget_ != nullptr; }
  /// Distance from the budget's first byte; 0 with MemoryBudget::Ranges::counted. Equal call sequences give equal
  /// offsets on every rank.
  [[nodiscard]] std::uint64_t offset() const { return range_.begin; }
  /// The requested size.
  [[nodiscard]] ByteCount size() const { return size_; }
  /// The same in whole granules.
  [[nodiscard]] ByteCount length() const { return ByteCount(range_.length); }

 private:
  friend class MemoryBudget;
  Reservation(MemoryBudget& budget, RangeAllocator::Range range, ByteCount size, Purpose purpose)
      : budget_(&budget), range_(range), size_(size), purpose_(purpose) {}
  void swap(Reservation& other) noexcept {
    std::swap(budget_, other.budget_);
    std::swap(range_, other.range_);
    std::swap(size_, other.size_);
    std::swap(purpose_, other.purpose_);
  }

  MemoryBudget* budget_ = nullptr;
  RangeAllocator::Range range_;
  ByteCount size_;
  Purpose purpose_{};
};

/// Allocates address ranges from the byte budget of one tier.
///
/// Handles offsets, not memory, so that it serves host arenas, devices and simulations. Safe from any thread. Does not
/// block.
class MemoryBudget {
 public:
  /// Whether reservations have places, so that a gap may be too short, or only count bytes.
  enum class Ranges : std::uint8_t { placed, counted };

  /// `size` is rounded down to whole granules. The ledger outlives the budget.
  MemoryBudget(Tier tier, ByteCount size, Ledger& ledger, Alignment granule = Alignment(4096),
               Ranges ranges = Ranges::placed);
  MemoryBudget(const MemoryBudget&) = delete;
  MemoryBudget& operator=(const MemoryBudget&) = delete;

  /// An address range of at least `size` bytes; nothing if no gap is long enough now. The caller decides whether to
  /// wait.
  [[nodiscard]] std::optional<Reservation> reserve(ByteCount size, Purpose purpose,
                                                   RangeAllocator::End end = RangeAllocator::End::low);

  [[nodiscard]] bool has_places() const { return ranges_.has_value(); }
  struct Neighbours {
    ByteCount before, after;
  };
  /// What is free directly before and after a reserved range; nothing where reservations have no places.
  [[nodiscard]] Neighbours free_beside(const Reservation& reserved) const;

  /// From now on ranges end before `end`; size(): all do. Those beyond stay reserved until they are given back.
  /// Precondition: reservations have places, and `end` is a multiple of the granule.
  void limit(ByteCount end);
  /// What is free beyond limit(), in ascending order.
  [[nodiscard]] std::vector<RangeAllocator::Range> free_beyond() const;

  [[nodiscard]] ByteCount size() const { return size_; }
  /// Of what limit() leaves.
  [[nodiscard]] ByteCount free() const;
  /// Where limit() lets ranges end.
  [[nodiscard]] ByteCount end() const;
  /// How often a range was reserved or given back, or the limit has changed.
  [[nodiscard]] std::uint64_t changes() const;
  /// The error budget_too_small for a refused reservation of `size`, with the bytes held by purpose.
  [[nodiscard]] Error too_small(ByteCount size) const;
  /// What can be raised, to advise it: the limit of limit(), or the budget.
  [[nodiscard]] const char* raisable() const;

 private:
  friend class Reservation;
  [[nodiscard]] std::optional<RangeAllocator::Range> allocate(ByteCount size, RangeAllocator::End end);
  void give_back(RangeAllocator::Range range, Purpose purpose);
  /// What is free beyond limit() is not reserved any more. With the lock held.
  void take_beyond();

  const Tier tier_;
  Ledger& ledger_;
  mutable std::mutex mutex_;
  const ByteCount size_;
  const Alignment granule_;
  ByteCount free_;
  std::uint64_t changes_ = 0;
  std::optional<RangeAllocator> ranges_;  // none if reservations only count bytes
  std::array<ByteCount, purpose_count> held_{};
  ByteCount end_;                              // of limit()
  std::vector<RangeAllocator::Range> beyond_;  // free, and allocated in `ranges_`
};

}  // namespace penstock::tiers
