#pragma once

// Adam on one element of a tile that stands in blocks, as the threads of a GPU do it; the same on the host,
// where it is tested. No standard headers, for the reason given in element.hpp.

#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

namespace penstock::kernels {

/// Element `index` of the tile, in a block that begins at `first` and has `length` elements.
struct TileElement {
  unsigned long long index, first, length;
};

/// In block [master n × 4 B][m n × 4 B][v n × 4 B]; the parameter is the master, rounded.
template <class Parameter>
struct Fp32Tile {
  float* state;
  Parameter* parameter;

  PENSTOCK_ELEMENT bool update(const AdamCoefficients& coefficients, const AdamOperands<float>& operands,
                               float gradient, const TileElement& at) const {
    float* const p = state + 3 * at.first + (at.index - at.first);
    float *const m = p + at.length, *const v = m + at.length;
    adam_update<ScalarLane>(coefficients.decay_mode, operands, gradient, *p, *m, *v);
    parameter[at.index] = narrow<Parameter>(*p);
    return is_finite(*p, *m, *v);
  }
  PENSTOCK_ELEMENT static bool is_finite(float p, float m, float v) {
    Largest<ScalarLane> largest;
    largest.add_master(p);
    largest.add_moments(m, v);
    return largest.p < not_finite && largest.v < not_finite;
  }
};

/// In block [m n × 4 B][v n × 4 B][remainder n × 2 B]; the parameter is the upper half of the master.
struct SplitTile {
  U8* state;
  Bf16* parameter;

  PENSTOCK_ELEMENT bool update(const AdamCoefficients& coefficients, const AdamOperands<float>& operands,
                               float gradient, const TileElement& at) const {
    U8* const block = state + 10 * at.first;
    float *const m = reinterpret_cast<float*>(block) + (at.index - at.first), *const v = m + at.length;
    U16* const remainder = reinterpret_cast<U16*>(block + 8 * at.length) + (at.index - at.first);
    U16* const upper = &parameter[at.index].bits;
    float p = ScalarLane::value_of(
        joined_master(ScalarLane::load_upper(upper), ScalarLane::load_lower_signed(remainder)));
    adam_update<ScalarLane>(coefficients.decay_mode, operands, gradient, p, *m, *v);
    ScalarLane::store_upper(upper, master_upper(ScalarLane::bits_of(p)));
    ScalarLane::store_lower(remainder, ScalarLane::bits_of(p));
    return Fp32Tile<Bf16>::is_finite(p, *m, *v);
  }
};

}  // namespace penstock::kernels
