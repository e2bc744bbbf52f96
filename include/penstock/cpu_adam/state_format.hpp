#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/kernels/variants.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace penstock::cpu_adam {

using kernels::StateFormat;

/// The formula that updates a tile, see optimizers.hpp. The numbers are written to disk and are never reused.
enum class Optimizer : std::uint8_t {
  adam = 0,     ///< keeps both moments
  lion = 1,     ///< keeps the first moment
  adagrad = 2,  ///< keeps the second moment, a sum of squares
  // A function of the caller instead of a formula, see zero/engine/update_segment.hpp. Its moments have any sign.
  custom_no_moments = 3,
  custom_one_moment = 4,   ///< keeps the first moment
  custom_two_moments = 5,  ///< keeps both
  muon = 6,                ///< keeps the first moment; updates a whole matrix; for Engine
};
[[nodiscard]] constexpr bool is_custom(Optimizer optimizer) {
  return optimizer >= Optimizer::custom_no_moments && optimizer <= Optimizer::custom_two_moments;
}
[[nodiscard]] constexpr std::string_view to_string(Optimizer optimizer) {
  switch (optimizer) {
    case Optimizer::adam: return "adam";
    case Optimizer::lion: return "lion";
    case Optimizer::adagrad: return "adagrad";
    case Optimizer::custom_no_moments: return "custom_no_moments";
    case Optimizer::custom_one_moment: return "custom_one_moment";
    case Optimizer::custom_two_moments: return "custom_two_moments";
    case Optimizer::muon: return "muon";
  }
  return "unknown";
}

/// What a tile stores: the states of an optimizer in a format. Adam takes every format, the others fp32 and moments;
/// one without moments fp32 alone.
struct TileLayout {
  StateFormat format;
  Optimizer optimizer;

  /// A format alone is Adam's.
  constexpr TileLayout(StateFormat of_format = StateFormat::fp32, Optimizer of_optimizer = Optimizer::adam)
      : format(of_format), optimizer(of_optimizer) {}
  [[nodiscard]] constexpr bool operator==(const TileLayout&) const = default;
};

/// A tile holds the optimizer state of consecutive elements of one shard. It is a sequence of blocks of
/// block_elements elements; the last one may be shorter. A block of n elements stores its states side by side:
///   fp32        [master n × 4 B][m n × 4 B][v n × 4 B]
///   moments     [m n × 4 B][v n × 4 B]
///   moments_bf16
///               [m n × 2 B][v n × 2 B]
///   split       [m n × 4 B][v n × 4 B][remainder n × 2 B]
///   split_bf16  [m n × 2 B][v n × 2 B][remainder n × 2 B]
///   split_q8    [remainder n × 2 B][m in 9 bits and the upper 7 bits of v n × 2 B][lower 4 bits of v ⌈n / 2⌉ × 1 B]
///               [scale of m ⌈n / 256⌉ × 1 B][scale of v ⌈n / 256⌉ × 1 B]
/// kernels/state_codes.hpp defines the codes. In `moments` and `moments_bf16` the master is the parameter, which is
/// stored elsewhere; in the split formats it is the bf16 parameter plus the remainder. In split and split_bf16 the sign
/// bit of the stored v is a part of that code: to read v, clear it; to write v, keep it. A tile of an optimizer that
/// keeps one moment has that one alone: 8 bytes an element in fp32, 4 in moments; of one without, the master.
inline constexpr ElementCount block_elements{kernels::adam_block_elements};

/// What a tile stores for each element.
enum class StateKind : std::uint8_t {
  master,        ///< the fp32 value that the parameter is rounded from
  first_moment,  ///< m, the moving average of the gradient
  second_moment,  ///< v, the moving average of its square, or in Adagrad its sum; not negative, unless is_custom()
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

/// The states that an optimizer keeps, in the order of all_states: master, and its moments. None, for an unknown
/// optimizer.
[[nodiscard]] std::span<const StateKind> states_of(Optimizer optimizer);
[[nodiscard]] bool keeps(Optimizer optimizer, StateKind kind);

/// Bytes of a block or a tile of `elements` elements; a block has at most block_elements.
///
/// Errors: invalid_argument, for an unknown format or optimizer, or when the bytes do not fit 64 bits. unsupported, for
/// a format that the optimizer does not take; the error names the optimizer and its formats.
[[nodiscard]] Result<ByteCount> tile_bytes(TileLayout layout, ElementCount elements);
[[nodiscard]] Result<ByteCount> block_bytes(TileLayout layout, ElementCount elements);

/// The default length of a tile: as many whole blocks as 3 MiB hold. Transfers of that length suit disks in every
/// format, and a few tiles in flight fit in a last-level cache. One block, for a layout that does not exist.
[[nodiscard]] ElementCount default_tile_elements(TileLayout layout);

/// The alignment that the address of a tile must have.
[[nodiscard]] Alignment state_alignment(StateFormat format);
/// Whether the parameter is a part of the master, so that the update reads it: all of it in `moments` and
/// `moments_bf16`, the upper half in the split formats.
[[nodiscard]] constexpr bool shares_parameter(StateFormat format) {
  return format != StateFormat::fp32;
}
/// Whether parameters can have this dtype. `fp32` and `moments` take every dtype, the other formats bf16 alone.
[[nodiscard]] bool takes_parameter(StateFormat format, DType dtype);

}  // namespace penstock::cpu_adam
