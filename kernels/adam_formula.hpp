#pragma once

// The Adam update of one element, written once over lanes. No standard headers, for the reason given in
// element.hpp.

#include "kernels/lane.hpp"

#include <penstock/kernels/adam_coefficients.hpp>

namespace penstock::kernels {

/// The coefficients as operands of type F, made once before a loop.
template <class F>
struct AdamOperands {
  F gradient_factor, beta1, one_minus_beta1, beta2, one_minus_beta2, denominator_factor, epsilon, decay,
      step_factor;

  PENSTOCK_ELEMENT explicit AdamOperands(const AdamCoefficients& c)
      : gradient_factor(c.gradient_factor),
        beta1(c.beta1),
        one_minus_beta1(c.one_minus_beta1),
        beta2(c.beta2),
        one_minus_beta2(c.one_minus_beta2),
        denominator_factor(c.denominator_factor),
        epsilon(c.epsilon),
        decay(c.decay),
        step_factor(c.step_factor) {}
};

/// Updates master p and moments m, v with the incoming gradient g. Adam: Kingma & Ba 2015, algorithm 1, in
/// the order of its last remark; AdamW: Loshchilov & Hutter 2019, algorithm 2. Every operation is rounded
/// once, none is fused. The master is added to once, so that a step costs it a single rounding.
///
/// Returns 0 where p and v are finite, NaN where one is not. (An infinite m makes v infinite too.)
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F adam_update(AdamDecay decay, const AdamOperands<F>& c, F g, F& p, F& m, F& v) {
  g = g * c.gradient_factor;
  if (decay == AdamDecay::l2) g = g + p * c.decay;
  m = m * c.beta1 + g * c.one_minus_beta1;
  v = v * c.beta2 + (g * g) * c.one_minus_beta2;
  F change = Lane::quotient(m, Lane::root(v) * c.denominator_factor + c.epsilon) * c.step_factor;
  if (decay == AdamDecay::decoupled) change = p * c.decay + change;
  p = p + change;
  return (p - p) + (v - v);
}

}  // namespace penstock::kernels
