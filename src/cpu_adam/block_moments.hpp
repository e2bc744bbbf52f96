#pragma once

#include "cpu_adam/block_view.hpp"

#include <span>

namespace penstock::cpu_adam::detail {

/// Writes the moments of all elements of the block, in its format; those that its optimizer does not keep are empty.
/// What the format cannot represent is rounded to nearest, halfway cases up in magnitude; what get_…_moments() returned
/// for a block of this format is stored exactly. Call after set_masters(), which sets the sign bit of the stored second
/// moments.
void set_moments(const BlockView& block, std::span<const float> first, std::span<const float> second);

/// Reads one moment of elements [at, at + values.size()) of the block.
void get_first_moments(const BlockView& block, std::size_t at, std::span<float> values);
void get_second_moments(const BlockView& block, std::size_t at, std::span<float> values);

}  // namespace penstock::cpu_adam::detail
