#pragma once

// The upper bounds of new moments from which a run in state format split_q8 gets its scales before it is updated. No
// standard headers, for the reason given in element.hpp.

#include "kernels/adam_formula.hpp"
#include "kernels/state_codes.hpp"

namespace penstock::kernels {

/// A bound of the v of a run, by its largest code: the lower 4 of its upper 7 mantissa bits are set. These are in
/// nibbles, so that the CPU reads nibbles only if the codes are coarse ones. The bound does not depend on the run's
/// scale, so that a run can be restored with another one.
PENSTOCK_ELEMENT float q8_bound_of_v(const Q8V<ScalarLane>& scale, U32 largest_code) {
  return float_of(bits_of(scale.decoded(largest_code)) | 0x000f0000u);
}

/// The largest finite magnitude of a master whose parameter has the magnitude with these bits.
PENSTOCK_ELEMENT float bound_of_master(U32 parameter) {
  const U32 bits = (parameter << 16) + 0x7fffu;
  return float_of(bits < not_finite ? bits : not_finite - 1);
}

/// The bounds of the new moments, by bounds of all old ones, gradients and masters. The formula, rounding included, is
/// monotonic in the magnitudes of its inputs, so the result for the largest inputs bounds all results.
PENSTOCK_ELEMENT Moments<float> q8_bounds(AdamDecay decay, const AdamOperands<ScalarLane>& operands,
                                          float gradient, float master, const Moments<float>& old) {
  return updated_moments<ScalarLane>(decay, operands, operands.gradient_factor < 0.0f ? -gradient : gradient,
                                     master, decayed<ScalarLane>(operands, old.m, old.v));
}

}  // namespace penstock::kernels
