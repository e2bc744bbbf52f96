#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/kernels/variants.hpp>

#include <array>
#include <cstdint>
#include <string_view>

namespace penstock::cpu_adam {

using kernels::StateFormat;

/// A tile holds the optimizer state of consecutive elements of one shard. It is a sequence of blocks of
/// block_elements elements; the last one may be shorter. A block of n elements stores its states side by side:
///   fp32        [master n × 4 B][m n × 4 B][v n × 4 B]
///   moments     [m n × 4 B][v n × 4 B]
///   split       [m n × 4 B][v n × 4 B][remainder n × 2 B]
///   split_bf16  [m n × 2 B][v n × 2 B][remainder n × 2 B]
///   split_q8    [remainder n × 2 B][m in 9 bits and the upper 7 bits of v n × 2 B][lower 4 bits of v ⌈n / 2⌉ × 1 B]
///               [scale of m ⌈n / 256⌉ × 1 B][scale of v ⌈n / 256⌉ × 1 B]
/// kernels/state_codes.hpp defines the codes. In `moments` the master is the fp32 parameter, which is stored elsewhere;
/// in the split formats it is the bf16 parameter plus the remainder. In split and split_bf16 the sign bit of the stored
/// v is a part of that code: to read v, clear it; to write v, keep it.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// What a tile stores for each element.
enum class StateKind : std::uint8_t {
  master,         ///< the fp32 value that the parameter is rounded from
  first_moment,   ///< m, the moving average of the gradient
  second_moment,  ///< v, the moving average of its square; not negative
};
inline constexpr std::array all_states{StateKind::master, StateKind::first_moment, StateKind::second_moment};
[[nodiscard]] constexpr std::string_view to_string(StateKind kind) {
  switch (kind) {
    case StateKind::master: return "master";
    case StateKind::first_moment: return "first_moment";
    case StateKind::second_moment: return "second_moment";
  }
  return "unknown";
}

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
/// Whether the parameter is a part of the master, so that the update reads it: all of it in `moments`, the upper half
/// in the split formats.
[[nodiscard]] constexpr bool shares_parameter(StateFormat format) {
  return format != StateFormat::fp32;
}
/// The dtype that the parameter must have if the format shares it.
[[nodiscard]] constexpr DType shared_parameter_dtype(StateFormat format) {
  return format == StateFormat::moments ? DType::fp32 : DType::bf16;
}

}  // namespace penstock::cpu_adam
