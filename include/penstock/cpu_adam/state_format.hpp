#pragma once

#include <penstock/base/result.hpp>
#include <penstock/kernels/adam_coefficients.hpp>

#include <cstdint>
#include <string_view>

namespace penstock::cpu_adam {

/// How a tile stores master weights and moments. The numbers reach disk and are never reused.
enum class StateFormat : std::uint8_t {
  fp32 = 0,        ///< master, m, v in fp32: 12 bytes a parameter, the reference
  split = 1,       ///< remainder of the bf16 master, m, v in fp32: 10
  split_bf16 = 2,  ///< remainder, m, v in bf16: 6
  split_q8 = 3,    ///< remainder, m, v in 8 bits with a scale for each 256: 4.01
};

[[nodiscard]] std::string_view to_string(StateFormat format);

/// A tile is a run of consecutive elements of one shard, cut into blocks of so many elements, the last one
/// possibly shorter, that stand one after the other. A block of n elements stores its states side by side:
///   fp32        [master n × 4 B][m n × 4 B][v n × 4 B]
///   split       [m n × 4 B][v n × 4 B][remainder n × 2 B]
///   split_bf16  [m n × 2 B][v n × 2 B][remainder n × 2 B]
///   split_q8    [remainder n × 2 B][m n × 1 B][v n × 1 B][scale of m ⌈n / 256⌉ × 1 B][scale of v ⌈n / 256⌉ ×
///   1 B]
/// The codes are kernels/state_codes.hpp's. In the split formats the upper half of the master is the bf16
/// parameter, which stands elsewhere; only together do they hold it.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// Bytes of a block or a tile of `elements` elements; a block has at most block_elements.
///
/// Errors: invalid_argument, for a format that is none, or when the bytes do not fit 64 bits.
[[nodiscard]] Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements);
[[nodiscard]] Result<ByteCount> block_bytes(StateFormat format, ElementCount elements);

/// What a tile has where nobody says otherwise: as many whole blocks as 3 MiB hold. Disks want transfers of
/// that length whatever the format, and a few tiles in flight fit a last-level cache.
[[nodiscard]] ElementCount default_tile_elements(StateFormat format);

/// What the address of a tile is a multiple of.
[[nodiscard]] Alignment state_alignment(StateFormat format);
/// Whether the parameter is the upper half of the master, which must be bf16 then, and is needed for the
/// update.
[[nodiscard]] constexpr bool is_split(StateFormat format) {
  return format != StateFormat::fp32;
}

}  // namespace penstock::cpu_adam
