// The optimizers as the loop uses them, one class each. Included by adam_kernel.inl.
//   advance  loads, updates and stores the moments of lane i, and returns what the master's change is computed from:
//            m, the numerator, and v, whose root the denominator contains. (In another type than Adam's updated
//            moments, GCC 12 copies them, and the split formats are 7 % slower in cache.)
//   root, ratio
//            the change of the master before it is multiplied by the learning rate is ratio(m, root(v))
//   decay_of_master
//            the decay mode for updated_master(). A constant for optimizers without modes

struct AdamRule {
  [[gnu::always_inline]] static inline kernels::AdamDecay decay_of_master(kernels::AdamDecay decay) {
    return decay;
  }
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay decay,
      const kernels::AdamOperands<Lane>& operands, const Gradient* gradient,
      kernels::Largest<Lane>& largest) {
    // Before load_master(): it also prepares the ties of split formats.
    const auto decayed = state.template load_decayed<Lane>(i, operands);
    typename Lane::F p(0.0f);
    if (decay == kernels::AdamDecay::l2) p = state.template load_master<Lane>(i);
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

/// Decays always: without modes the code is three quarters as long, and a decay of 0 does not change a bit of finite
/// masters. Has no long-latency operation, but in cache the pipelined loop is 1.2 times as fast as a plain one.
struct LionRule {
  [[gnu::always_inline]] static inline kernels::AdamDecay decay_of_master(kernels::AdamDecay) {
    return kernels::AdamDecay::decoupled;
  }
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay, const kernels::AdamOperands<Lane>& operands,
      const Gradient* gradient, kernels::Largest<Lane>& largest) {
    const auto m = state.template load_moment<Lane>(i);
    const auto g = Lane::load(gradient + i) * operands.gradient_factor;
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

/// Decays the gradient always, as Lion the master.
struct AdagradRule {
  [[gnu::always_inline]] static inline kernels::AdamDecay decay_of_master(kernels::AdamDecay) {
    return kernels::AdamDecay::none;
  }
  template <class Lane, class State, class Gradient>
  [[gnu::always_inline]] static inline Moments<typename Lane::F> advance(
      const State& state, unsigned long i, kernels::AdamDecay, const kernels::AdamOperands<Lane>& operands,
      const Gradient* gradient, kernels::Largest<Lane>& largest) {
    const auto old = state.template load_moment<Lane>(i);
    const auto p = state.template load_master<Lane>(i);
    const auto g =
        kernels::used_gradient<Lane>(kernels::AdamDecay::l2, operands, Lane::load(gradient + i), p);
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
