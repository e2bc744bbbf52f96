#include "unit/swap/simulate/optimum.hpp"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>

namespace penstock::swap::test {

namespace {

using Set = std::uint32_t;  // of tensors, a bit each
/// Which are in memory, and which of them have changed.
using State = std::pair<Set, Set>;

ByteCount bytes_of(const AccessTrace& trace, Set tensors) {
  ByteCount bytes;
  for (std::size_t i = 0; i < trace.tensors.size(); ++i) {
    if ((tensors >> i & 1) != 0) bytes += trace.tensors[i].size;
  }
  return bytes;
}

}  // namespace

ByteCount optimum(const AccessTrace& trace, ByteCount budget) {
  std::map<State, ByteCount> least = {{{0, 0}, {}}};
  for (const auto& [tensor, access] : trace.uses) {
    const Set used = Set{1} << tensor;
    std::map<State, ByteCount> next;
    for (const auto& [state, bytes] : least) {
      const auto [present, changed] = state;
      const Set others = present & ~used;
      for (Set kept = others;; kept = (kept - 1) & others) {
        if (bytes_of(trace, kept | used) <= budget) {
          ByteCount moved = bytes + bytes_of(trace, changed & others & ~kept);
          if ((present & used) == 0 && access != Access::overwrite) moved += trace.tensors[tensor].size;
          const Set still_changed = (changed & (kept | used)) | (access == Access::read ? 0 : used);
          const auto [found, is_new] = next.emplace(State{kept | used, still_changed}, moved);
          if (!is_new) found->second = std::min(found->second, moved);
        }
        if (kept == 0) break;
      }
    }
    least = std::move(next);
  }
  ByteCount best(~std::uint64_t{0});
  for (const auto& [state, bytes] : least) best = std::min(best, bytes + bytes_of(trace, state.second));
  return best;
}

}  // namespace penstock::swap::test
