#pragma once

#include <penstock/base/result.hpp>
#include <penstock/kernels/variants.hpp>

namespace penstock::cpu_adam {

using kernels::StateFormat;

/// A tile is a run of consecutive elements of one shard, cut into blocks of so many elements, the last one
/// possibly shorter, that stand one after the other. A block of n elements stores its states side by side:
///   fp32        [master n × 4 B][m n × 4 B][v n × 4 B]
///   split       [m n × 4 B][v n × 4 B][remainder n × 2 B]
///   split_bf16  [m n × 2 B][v n × 2 B][remainder n × 2 B]
///   split_q8    [remainder n × 2 B][m n × 1 B][v n × 1 B]
///               [scale of m ⌈n / 256⌉ × 1 B][scale of v ⌈n / 256⌉ × 1 B]
/// The codes are kernels/state_codes.hpp's. In the split formats the upper half of the master is the bf16
/// parameter, which stands elsewhere; only together do they hold it.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// Bytes of a block or a tile of `elements` elements; a block has at most block_elements.
///
/// Errors: invalid_argument, for a format that is none, or when the bytes do not fit 64 bits.
[[nodiscard]] Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements);
[[nodiscard]] Result<ByteCount> block_bytes(StateFormat format, ElementCount elements);

/// The default length of a tile: as many whole blocks as 3 MiB hold. Disks want transfers of
/// that length whatever the format, and a few tiles in flight fit a last-level cache. One block, for a format that is
/// none.
[[nodiscard]] ElementCount default_tile_elements(StateFormat format);

/// What the address of a tile is a multiple of.
[[nodiscard]] Alignment state_alignment(StateFormat format);
/// Whether the parameter is the upper half of the master, which must be bf16 then, and is needed for the
/// update.
[[nodiscard]] constexpr bool is_split(StateFormat format) {
  return format != StateFormat::fp32;
}

}  // namespace penstock::cpu_adam
