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

// Adam: Kingma & Ba 2015, algorithm 1, in the order of its last remark; AdamW: Loshchilov & Hutter 2019,
// algorithm 2. Every operation is rounded once, none is fused. In three parts, so that a loop can have the
// long operations of some elements under way while it begins others.

/// Updates moments m, v with the incoming gradient g of master p.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT void update_moments(AdamDecay decay, const AdamOperands<F>& c, F g, F p, F& m, F& v) {
  g = g * c.gradient_factor;
  if (decay == AdamDecay::l2) g = g + p * c.decay;
  m = m * c.beta1 + g * c.one_minus_beta1;
  v = v * c.beta2 + (g * g) * c.one_minus_beta2;
}

/// What the master moves by, before the learning rate.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F adam_ratio(const AdamOperands<F>& c, F m, F root_of_v) {
  return Lane::quotient(m, root_of_v * c.denominator_factor + c.epsilon);
}

/// The master is added to once, so that a step costs it a single rounding.
template <class F>
PENSTOCK_ELEMENT F updated_master(AdamDecay decay, const AdamOperands<F>& c, F p, F ratio) {
  F change = ratio * c.step_factor;
  if (decay == AdamDecay::decoupled) change = p * c.decay + change;
  return p + change;
}

/// All three.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT void adam_update(AdamDecay decay, const AdamOperands<F>& c, F g, F& p, F& m, F& v) {
  update_moments<Lane>(decay, c, g, p, m, v);
  p = updated_master(decay, c, p, adam_ratio<Lane>(c, m, Lane::root(v)));
}

/// The largest magnitudes among elements, as fp32 bits: not_finite or more where one was not finite. (An
/// infinite m makes v infinite too; how large m is, a format with scales asks.)
template <class Lane>
struct Largest {
  using F = typename Lane::F;
  using U = typename Lane::U;
  using Most = typename Lane::Most;
  Most p = Most(0u), m = Most(0u), v = Most(0u);

  PENSTOCK_ELEMENT void add_master(F master) { p = Lane::larger(p, Lane::bits_of(master) & U(0x7fffffffu)); }
  PENSTOCK_ELEMENT void add_moments(F first, F second) {
    m = Lane::larger(m, Lane::bits_of(first) & U(0x7fffffffu));
    v = Lane::larger(v, Lane::bits_of(second));  // has no sign
  }
};
inline constexpr U32 not_finite = 0x7f800000u;

}  // namespace penstock::kernels
