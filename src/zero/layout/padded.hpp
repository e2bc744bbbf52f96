#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/units.hpp>

namespace penstock::zero {

/// Extents and reservations are multiples of this; see FileSystem and MemoryBudget.
inline constexpr Alignment extent_alignment(4096);

/// The bytes of `elements` in an extent or a reservation.
[[nodiscard]] constexpr ByteCount padded(ElementCount elements, DType dtype) {
  return round_up(size_of(dtype) * elements.value(), extent_alignment);
}

}  // namespace penstock::zero
