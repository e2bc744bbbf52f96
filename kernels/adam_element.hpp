#pragma once

// Adam on one element of a tile, as each GPU thread computes it; it also compiles for the host, where it is tested. No
// standard headers, for the reason given in element.hpp.

#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

namespace penstock::kernels {

/// Element `index` of the tile, in a block that begins at `first` and has `length` elements.
struct TileElement {
  unsigned long long index, first, length;
};

/// State format fp32: blocks [master n × 4 B][m n × 4 B][v n × 4 B]; the parameter is the master, rounded.
template <class Parameter>
struct Fp32Tile {
  float* state;
  Parameter* parameter;

  PENSTOCK_ELEMENT bool update(const AdamCoefficients& coefficients, const AdamOperands<ScalarLane>& operands,
                               float gradient, const TileElement& at) const {
    float* const p_at = state + 3 * at.first + (at.index - at.first);
    float *const m_at = p_at + at.length, *const v_at = m_at + at.length;
    float p = *p_at, m = *m_at, v = *v_at;
    adam_update<ScalarLane>(coefficients.decay_mode, operands, gradient, p, m, v);
    *p_at = p, *m_at = m, *v_at = v;
    parameter[at.index] = narrow<Parameter>(p);
    return is_finite(p, v);
  }
  /// m needs no check: if it is infinite, so is v.
  PENSTOCK_ELEMENT static bool is_finite(float p, float v) {
    Largest<ScalarLane> largest;
    largest.add(p);
    largest.add(v);
    return largest.most < not_finite;
  }
};

/// State format split: blocks [m n × 4 B][v n × 4 B][remainder n × 2 B]; the parameter is the upper half of the
/// master. The sign bit of v belongs to the master, see SplitMaster.
struct SplitTile {
  U8* state;
  Bf16* parameter;

  PENSTOCK_ELEMENT bool update(const AdamCoefficients& coefficients, const AdamOperands<ScalarLane>& operands,
                               float gradient, const TileElement& at) const {
    U8* const block = state + 10 * at.first;
    float *const m_at = reinterpret_cast<float*>(block) + (at.index - at.first), *const v_at =
                                                                                     m_at + at.length;
    U16* const remainder = reinterpret_cast<U16*>(block + 8 * at.length) + (at.index - at.first);
    U16* const upper = &parameter[at.index].bits;
    const U32 v_bits = bits_of(*v_at);
    SplitMaster<ScalarLane> halves{*upper, *remainder};
    halves.round_up(v_bits >> 31);
    float p = float_of(halves.bits()), m = *m_at, v = float_of(v_bits & ~sign_bit);
    adam_update<ScalarLane>(coefficients.decay_mode, operands, gradient, p, m, v);
    halves = SplitMaster<ScalarLane>(storable(bits_of(p)));
    const U32 down = halves.odd_ties();
    halves.round_down(down);
    *m_at = m, *v_at = float_of(bits_of(v) | down << 31);
    ScalarLane::store_words(upper, halves.parameter);
    ScalarLane::store_words(remainder, halves.remainder);
    return Fp32Tile<Bf16>::is_finite(p, v);
  }
};

}  // namespace penstock::kernels
