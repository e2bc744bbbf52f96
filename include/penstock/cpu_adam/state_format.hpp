#pragma once

#include <penstock/base/result.hpp>
#include <penstock/kernels/adam_coefficients.hpp>

#include <cstdint>
#include <string_view>

namespace penstock {

/// How a tile stores master weights and moments. The numbers reach disk and are never reused.
enum class StateFormat : std::uint8_t {
  fp32 = 0,        ///< master, m, v in fp32: 12 bytes a parameter, the reference
  split = 1,       ///< remainder of the bf16 master, m, v in fp32: 10
  split_bf16 = 2,  ///< remainder, m, v in bf16: 6
  split_q8 = 3,    ///< remainder, m, v in 8 bits with block scales: 4.03
};

[[nodiscard]] std::string_view to_string(StateFormat format);

/// A tile is a run of consecutive elements of one shard, cut into blocks of so many elements, the last one
/// possibly shorter. A block of n elements stores its states side by side, in fp32 as
/// [master n × 4 B][m n × 4 B][v n × 4 B]: block i starts at byte 16384 × 12 × i.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// Bytes of a block or a tile of `elements` elements; a block has at most block_elements.
///
/// Errors: unsupported, for a format that is not implemented yet; invalid_argument, when the product does
/// not fit 64 bits.
[[nodiscard]] Result<ByteCount> tile_bytes(StateFormat format, ElementCount elements);
[[nodiscard]] Result<ByteCount> block_bytes(StateFormat format, ElementCount elements);

}  // namespace penstock
