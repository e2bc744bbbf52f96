#pragma once

#include "zero/layout/padded.hpp"
#include "zero/layout/tiles.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/zero/config/config.hpp>

#include <algorithm>
#include <vector>

namespace penstock::zero {

// What a commit copies from memory is copied in parts of whole blocks, each a tensor of its own: so it needs little
// staging, and every part verifies by itself.

inline constexpr ByteCount commit_part_max = 8_MiB;

/// Cuts `count` elements, of which a whole block takes `block` bytes.
inline std::vector<TileRange> commit_parts(ElementCount count, ByteCount block) {
  const ElementCount part = cpu_adam::block_elements * std::max<std::uint64_t>(1, commit_part_max / block);
  std::vector<TileRange> parts;
  for (ElementCount begin; begin < count; begin += part)
    parts.push_back({begin, std::min(part, count - begin)});
  return parts;
}
/// The bytes of a block of parameters.
[[nodiscard]] constexpr ByteCount parameter_block(DType dtype) {
  return size_of(dtype) * cpu_adam::block_elements.value();
}

/// Whether the parameters of a flat are committed: where they follow from the masters, those are enough.
[[nodiscard]] inline bool commits_parameters(const Config& config, const FlatLayout& flat) {
  return flat.frozen || cpu_adam::shares_parameter(tile_layout(config, flat).format);
}

}  // namespace penstock::zero
