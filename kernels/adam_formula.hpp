#pragma once

// The Adam formula, written once as templates over Lanes (see lane.hpp). No standard headers, for the reason given in
// element.hpp.

#include "kernels/lane.hpp"

#include "kernels/adam_coefficients.hpp"

namespace penstock::kernels {

/// The coefficients as a Lane's operands, constructed once before a loop, also from another Lane's.
template <class Lane>
struct AdamOperands {
  typename Lane::Operand gradient_factor, beta1, one_minus_beta1, beta2, one_minus_beta2, denominator_factor,
      epsilon, decay, step_factor;

  template <class Coefficients>
  PENSTOCK_ELEMENT explicit AdamOperands(const Coefficients& c)
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
// algorithm 2. Every operation is rounded once, none is fused. The formula is divided into functions so that a loop
// can start the long-latency operations of some elements before it finishes others.

template <class F>
struct Moments {
  F m, v;
};

template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT Moments<F> decayed(const AdamOperands<Lane>& c, F m, F v) {
  return {m * c.beta1, v * c.beta2};
}

/// The gradient that the formula uses, from the incoming one and its master p.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F used_gradient(AdamDecay decay, const AdamOperands<Lane>& c, F g, F p) {
  g = g * c.gradient_factor;
  if (decay == AdamDecay::l2) g = g + p * c.decay;
  return g;
}

/// The new moments from the decayed ones, the incoming gradient g and its master p.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT Moments<F> updated_moments(AdamDecay decay, const AdamOperands<Lane>& c, F g, F p,
                                            const Moments<F>& decayed_ones) {
  g = used_gradient<Lane>(decay, c, g, p);
  return {decayed_ones.m + g * c.one_minus_beta1, decayed_ones.v + (g * g) * c.one_minus_beta2};
}

/// The change of the master before it is multiplied by the learning rate.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F adam_ratio(const AdamOperands<Lane>& c, F m, F root_of_v) {
  return Lane::quotient(m, root_of_v * c.denominator_factor + c.epsilon);
}

/// Adds to the master once, so that a step rounds it once.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F updated_master(AdamDecay decay, const AdamOperands<Lane>& c, F p, F ratio) {
  F change = ratio * c.step_factor;
  if (decay == AdamDecay::decoupled) change = p * c.decay + change;
  return p + change;
}

/// The whole update of one lane.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT void adam_update(AdamDecay decay, const AdamOperands<Lane>& c, F g, F& p, F& m, F& v) {
  const Moments<F> moments = updated_moments<Lane>(decay, c, g, p, decayed<Lane>(c, m, v));
  m = moments.m;
  v = moments.v;
  p = updated_master<Lane>(decay, c, p, adam_ratio<Lane>(c, m, Lane::root(v)));
}

/// The largest magnitude of the added numbers, as fp32 bits; at least not_finite if one was not finite.
template <class Lane>
struct Largest {
  typename Lane::Most most = typename Lane::Most(0u);

  PENSTOCK_ELEMENT void add(typename Lane::F x) {
    most = Lane::larger(most, Lane::bits_of(x) & typename Lane::Mask(0x7fffffffu));
  }
  /// For numbers that are neither negative nor -0.
  PENSTOCK_ELEMENT void add_positive(typename Lane::F x) { most = Lane::larger(most, Lane::bits_of(x)); }
  /// The same for numbers given by the upper halves of their bits, which suffice to detect non-finite numbers.
  template <class W>
  PENSTOCK_ELEMENT void add_upper_words(W x) {
    add_positive_upper_words(x & W(0x7fffu));
  }
  template <class W>
  PENSTOCK_ELEMENT void add_positive_upper_words(W x) {
    most = Lane::larger_upper(most, x);
  }
};
inline constexpr U32 not_finite = 0x7f800000u;

}  // namespace penstock::kernels
