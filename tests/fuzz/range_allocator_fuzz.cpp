// Compares RangeAllocator with a model that stores the owner of each granule.
#include "choices.hpp"

#include <penstock/base/check.hpp>
#include <penstock/base/units.hpp>
#include "tiers/store/range_allocator.hpp"

#include <algorithm>
#include <optional>
#include <vector>

namespace {

using penstock::tiers::RangeAllocator;
using Range = RangeAllocator::Range;

/// In granules.
class Model {
 public:
  struct Gap {
    std::uint64_t begin = 0, length = 0;
  };

  explicit Model(std::uint64_t granules) : taken_(granules, false) {}

  [[nodiscard]] std::vector<Gap> gaps() const {
    std::vector<Gap> gaps;
    for (std::uint64_t at = 0; at < taken_.size(); ++at) {
      if (taken_[at]) continue;
      if (gaps.empty() || gaps.back().begin + gaps.back().length != at) gaps.push_back({at, 0});
      ++gaps.back().length;
    }
    return gaps;
  }
  /// Where best fit puts it: in the shortest gap that will do, of several the one that is nearest to `end`.
  [[nodiscard]] std::optional<std::uint64_t> place(std::uint64_t length, RangeAllocator::End end) const {
    std::optional<Gap> best;
    for (const Gap& gap : gaps()) {
      if (gap.length < length) continue;
      const bool as_good = best && gap.length == best->length && end == RangeAllocator::End::high;
      if (!best || gap.length < best->length || as_good) best = gap;
    }
    if (!best) return std::nullopt;
    return end == RangeAllocator::End::low ? best->begin : best->begin + best->length - length;
  }
  void set(std::uint64_t begin, std::uint64_t length, bool taken) {
    for (std::uint64_t at = begin; at < begin + length; ++at) {
      PENSTOCK_CHECK(taken_.at(at) != taken);  // nobody else's
      taken_[at] = taken;
    }
  }
  [[nodiscard]] std::uint64_t free() const {
    return static_cast<std::uint64_t>(std::count(taken_.begin(), taken_.end(), false));
  }
  [[nodiscard]] std::uint64_t largest_gap() const {
    std::uint64_t largest = 0;
    for (const Gap& gap : gaps()) largest = std::max(largest, gap.length);
    return largest;
  }

 private:
  std::vector<bool> taken_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  penstock::test::Choices choices(data, size);
  const std::uint64_t granule = 1 + choices.below(100), granules = choices.below(65);
  RangeAllocator allocator(granule * granules, granule);
  Model model(granules);
  std::vector<Range> live;

  const auto release = [&](std::size_t which) {
    const Range range = live[which];
    live.erase(live.begin() + static_cast<std::ptrdiff_t>(which));
    model.set(range.begin / granule, range.length / granule, false);
    allocator.release(range);
  };
  const auto agree = [&] {
    PENSTOCK_CHECK(allocator.free_total() == model.free() * granule);
    PENSTOCK_CHECK(allocator.largest_gap() == model.largest_gap() * granule);
  };

  while (!choices.exhausted()) {
    const std::uint8_t what = choices.byte();
    if (what % 3 == 0 && !live.empty()) {
      release(choices.below(live.size()));
    } else {
      const auto end = what % 2 == 0 ? RangeAllocator::End::low : RangeAllocator::End::high;
      // Sometimes more than there can be, up to where rounding up would begin at zero again.
      const std::uint64_t length =
          what == 255 ? ~std::uint64_t{0} - choices.below(200) : 1 + choices.below(granule * 10);
      const bool too_long = length > granule * granules;
      const auto place = too_long ? std::nullopt : model.place(penstock::ceil_divide(length, granule), end);

      const auto range = allocator.allocate(length, end);

      PENSTOCK_CHECK(range.has_value() == place.has_value());
      if (range) {
        PENSTOCK_CHECK(range->begin == *place * granule);
        PENSTOCK_CHECK(range->length == penstock::round_up(length, granule));
        model.set(range->begin / granule, range->length / granule, true);
        live.push_back(*range);
      }
    }
    agree();
  }
  while (!live.empty()) {
    release(live.size() / 2);
    agree();
  }
  PENSTOCK_CHECK(allocator.largest_gap() == allocator.size());
  return 0;
}
