// The optimizers as the loop uses them, one class each. Included by adam_kernel.inl.
//   advance  loads, updates and stores the moments of lane i, and returns what the master's change is computed from:
//            m, the numerator, and v, whose root the denominator contains. (In another type than Adam's updated
//            moments, GCC 12 copies them, and the split formats are 7 % slower in cache.)
//   root, ratio
//            the long-latency operations: the change of the master before it is multiplied by the learning rate is
//            ratio(m, root(v))

/// The master where the formula uses it for L2 decay. Elsewhere it is not loaded yet.
template <class Lane, class State>
[[gnu::always_inline]] inline typename Lane::F l2_master(const State& state, unsigned long i,
                                                         kernels::AdamDecay decay) {
  typename Lane::F p(0.0f);
  if (decay == kernels::AdamDecay::l2) p = state.template load_master<Lane>(i);
  return p;
}

struct AdamRule {
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay decay,
      const kernels::AdamOperands<Lane>& operands, const Gradient* gradient,
      kernels::Largest<Lane>& largest) {
    // Before load_master(): it also prepares the ties of split formats.
    const auto decayed = state.template load_decayed<Lane>(i, operands);
    const auto p = l2_master<Lane>(state, i, decay);
    const auto moments =
        kernels::updated_moments<Lane>(decay, operands, Lane::load(gradient + i), p, decayed);
    state.template store_moments<Lane>(i, moments, largest);
    return moments;
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F root(typename Lane::F v) {
    return Lane::root(v);
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F ratio(const kernels::AdamOperands<Lane>& operands,
                                                              typename Lane::F m,
                                                              typename Lane::F root_of_v) {
    return kernels::adam_ratio<Lane>(operands, m, root_of_v);
  }
};

/// Has no long-latency operation.
struct LionRule {
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay decay,
      const kernels::AdamOperands<Lane>& operands, const Gradient* gradient,
      kernels::Largest<Lane>& largest) {
    const auto m = state.template load_moment<Lane>(i);
    const auto p = l2_master<Lane>(state, i, decay);
    const auto g = kernels::used_gradient<Lane>(decay, operands, Lane::load(gradient + i), p);
    const auto moment = kernels::lion_moment<Lane>(operands, g, m);
    largest.add(moment.m);
    state.template store_moment<Lane>(i, moment.m);
    return {moment.direction, moment.direction};
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F root(typename Lane::F unused) {
    return unused;
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F ratio(const kernels::AdamOperands<Lane>&,
                                                              typename Lane::F direction, typename Lane::F) {
    return Lane::sign(direction);
  }
};

struct AdagradRule {
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay decay,
      const kernels::AdamOperands<Lane>& operands, const Gradient* gradient,
      kernels::Largest<Lane>& largest) {
    const auto old = state.template load_moment<Lane>(i);
    const auto p = l2_master<Lane>(state, i, decay);
    const auto g = kernels::used_gradient<Lane>(decay, operands, Lane::load(gradient + i), p);
    const auto sum = kernels::adagrad_sum(g, old);
    largest.add_positive(sum);
    state.template store_moment<Lane>(i, sum);
    return {g, sum};
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F root(typename Lane::F sum) {
    return Lane::root(sum);
  }
  template <class Lane>
  [[gnu::always_inline]] static inline typename Lane::F ratio(const kernels::AdamOperands<Lane>& operands,
                                                              typename Lane::F g,
                                                              typename Lane::F root_of_sum) {
    return kernels::adagrad_ratio<Lane>(operands, g, root_of_sum);
  }
};
