#pragma once

#include <penstock/base/units.hpp>

#include <cstdint>
#include <span>

namespace penstock::zero {

__extension__ typedef unsigned __int128 WideProduct;

/// Chooses numbers of a sequence whose sizes add up to at most `room`, spread evenly over the bytes of the sequence:
/// of its first b bytes about b × room / all are chosen. Of numbers of one size these are as many as fit; of several
/// sizes less than the largest is left. Calls `choose(number)` for those chosen; numbers for which `skips(number)` do
/// not count. Returns the chosen bytes.
template <class Skips, class Choose>
ByteCount choose_evenly(std::span<const ByteCount> sizes, ByteCount room, const Skips& skips,
                        const Choose& choose) {
  ByteCount all, passed, chosen;
  for (std::uint64_t n = 0; n < sizes.size(); ++n) {
    if (!skips(n)) all += sizes[n];
  }
  for (std::uint64_t n = 0; n < sizes.size(); ++n) {
    if (skips(n)) continue;
    passed += sizes[n];
    const ByteCount with = chosen + sizes[n];
    if (with > room || WideProduct{with.value()} * all.value() > WideProduct{room.value()} * passed.value())
      continue;
    chosen = with;
    choose(n);
  }
  return chosen;
}

}  // namespace penstock::zero
