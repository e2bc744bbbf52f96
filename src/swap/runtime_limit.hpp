#pragma once

#include "swap/runtime_internals.hpp"

#include <penstock/swap/runtime.hpp>

#include <cstddef>
#include <set>
#include <span>
#include <vector>

namespace penstock::swap {

/// The pages that Runtime::limit_memory() has given back.
struct Runtime::Limited {
  std::vector<RuntimeInternals::GivenBack> pieces;  ///< as they were given back
  std::set<const std::byte*> given;                 ///< their pages

  /// Gives back the whole pages of `free` that are not given back yet.
  void give_back(const RuntimeInternals& internals, std::span<const HostSpan> free);
  /// Takes back every piece that has a page before `end`. Errors: no_space.
  Result<void> take_back_below(const RuntimeInternals& internals, const std::byte* end);
};

}  // namespace penstock::swap
