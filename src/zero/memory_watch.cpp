#include "zero/memory_watch.hpp"

#include <algorithm>

namespace penstock::zero {

ByteCount MemoryWatch::next(ByteCount limit, ByteCount available) const {
  constexpr std::uint64_t page = std::uint64_t{2} << 20;  // in which memory is given back
  if (available < reserve) {
    const ByteCount missing(round_up(ceil_divide((reserve - available).value(), ranks), page));
    return std::max(least, limit - std::min(limit, missing));
  }
  const ByteCount step = budget / 8, beyond = available - reserve;
  if (limit >= budget || beyond <= step) return limit;
  return std::min(budget, limit + ByteCount((beyond - step / 2).value() / ranks / page * page));
}

}  // namespace penstock::zero
