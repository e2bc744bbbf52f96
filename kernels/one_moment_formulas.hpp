#pragma once

// The formulas of the optimizers that keep one moment, written once as templates over Lanes (see lane.hpp). Every
// operation is rounded once, none is fused. The master is updated with updated_master(), as in Adam. No standard
// headers, for the reason given in element.hpp.

#include "kernels/adam_formula.hpp"

namespace penstock::kernels {

// Lion: Chen et al. 2023, algorithm 2. Its ratio is Lane::sign() of the direction.

/// The interpolation whose sign changes the master, and the new moment. g is the used gradient, m the old moment.
template <class F>
struct LionMoment {
  F direction, m;
};
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT LionMoment<F> lion_moment(const AdamOperands<Lane>& c, F g, F m) {
  return {m * c.beta1 + g * c.one_minus_beta1, m * c.beta2 + g * c.one_minus_beta2};
}

// Adagrad: Duchi et al. 2011, with diagonal matrices; epsilon and decay as in torch.optim.Adagrad.

/// The new sum of squares. g is the used gradient.
template <class F>
PENSTOCK_ELEMENT F adagrad_sum(F g, F sum) {
  return sum + g * g;
}

/// The change of the master before it is multiplied by the learning rate.
template <class Lane, class F = typename Lane::F>
PENSTOCK_ELEMENT F adagrad_ratio(const AdamOperands<Lane>& c, F g, F root_of_sum) {
  return Lane::quotient(g, root_of_sum + c.epsilon);
}

}  // namespace penstock::kernels
