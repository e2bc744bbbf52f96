#pragma once

#include "zero/layout/shard_layout.hpp"

#include <penstock/base/result.hpp>

#include <algorithm>
#include <cstdint>

namespace penstock::zero {

/// Elements of a flat that belong to one parameter.
struct FlatPart {
  ParameterId parameter;
  std::uint64_t first;  ///< which element of the parameter is the first one
  std::size_t offset;   ///< of that one, in the range of the flat
  std::size_t count;
};

/// Calls `visit(part)` for each parameter's part of the elements [first, first + count) of a flat, without the padding,
/// until a call returns an error.
template <class Visit>
Result<void> for_each_parameter(const FlatLayout& flat, ElementCount first, ElementCount count,
                                const Visit& visit) {
  for (const FlatSlot& slot : flat.slots) {
    const ElementCount begin = std::max(first, slot.begin),
                       end = std::min(first + count, slot.begin + slot.count);
    if (begin >= end) continue;
    PENSTOCK_TRY(visit(FlatPart{.parameter = slot.parameter,
                                .first = (begin - slot.begin).value(),
                                .offset = (begin - first).value(),
                                .count = (end - begin).value()}));
  }
  return ok();
}

}  // namespace penstock::zero
