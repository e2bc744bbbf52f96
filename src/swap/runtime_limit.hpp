#pragma once

#include "swap/runtime_internals.hpp"

#include <penstock/swap/runtime.hpp>

#include <array>
#include <cstddef>
#include <optional>
#include <set>
#include <span>

namespace penstock::swap {

/// The pages that Runtime::limit_memory() has given back.
struct Runtime::Limited {
  explicit Limited(ByteCount budget) : limits{budget, budget} {}

  std::array<ByteCount, 2> limits;  ///< by Limiter; the lower one applies
  RuntimeInternals::GivenBack memory;
  std::set<const std::byte*> pages;  ///< of it
  std::optional<ByteCount>
      refused;  ///< the limit at which no page could be given back: that is not tried again

  /// Gives back the whole pages of `free` that are not given back yet.
  void give_back(const RuntimeInternals& internals, std::span<const HostSpan> free);
  /// Takes back the pages that begin before `end`. Errors: no_space, and nothing has changed.
  Result<void> take_back(const RuntimeInternals& internals, const std::byte* end);
};

}  // namespace penstock::swap
