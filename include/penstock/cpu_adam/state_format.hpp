#pragma once

#include <penstock/base/result.hpp>
#include <penstock/kernels/variants.hpp>

namespace penstock::cpu_adam {

using kernels::StateFormat;

/// A tile holds the optimizer state of consecutive elements of one shard. It is a sequence of blocks of
/// block_elements elements; the last one may be shorter. A block of n elements stores its states side by side:
///   fp32        [master n × 4 B][m n × 4 B][v n × 4 B]
///   split       [m n × 4 B][v n × 4 B][remainder n × 2 B]
///   split_bf16  [m n × 2 B][v n × 2 B][remainder n × 2 B]
///   split_q8    [remainder n × 2 B][m n × 1 B][v n × 1 B]
///               [scale of m ⌈n / 256⌉ × 1 B][scale of v ⌈n / 256⌉ × 1 B]
/// kernels/state_codes.hpp defines the codes. In the split formats the upper half of the master is the bf16
/// parameter, which is stored elsewhere; parameter and remainder together give the master. In split and split_bf16
/// they do so with one more bit, the sign bit of the stored v: to read v, clear it; to write v, keep it.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// Bytes of a block or a tile of `elements` elements; a block has at most block_elements.
///
/// Errors: invalid_argument, for an unknown format, or when the bytes do not fit 64 bits.
[[nodiscard]] Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements);
[[nodiscard]] Result<ByteCount> block_bytes(StateFormat format, ElementCount elements);

/// The default length of a tile: as many whole blocks as 3 MiB hold. Transfers of that length suit disks in every
/// format, and a few tiles in flight fit in a last-level cache. One block, for an unknown format.
[[nodiscard]] ElementCount default_tile_elements(StateFormat format);

/// The alignment that the address of a tile must have.
[[nodiscard]] Alignment state_alignment(StateFormat format);
/// Whether the parameter is the upper half of the master. It must then be bf16, and the update reads it.
[[nodiscard]] constexpr bool is_split(StateFormat format) {
  return format != StateFormat::fp32;
}

}  // namespace penstock::cpu_adam
