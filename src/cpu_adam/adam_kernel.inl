// The Adam loop over one block. Each adam_kernel_<isa>.cpp includes this once, inside an anonymous namespace,
// after defining WideLane there: what adam_update computes in, see kernels/lane.hpp. Tails are scalar.

#include "cpu_adam/adam_states.inl"

#include "cpu_adam/adam_q8_run.inl"

using kernels::ScalarLane;

// How far ahead memory is asked for, in elements. The divisions keep so few iterations in flight that the
// hardware's own prefetching is not enough: 1.1 to 1.2 times the rate of a loop without. Past the end of the
// block these are addresses that nobody looks at, or the next block.
constexpr unsigned long ahead = 512;

/// Elements i to i + Lane::size; not zero where one is no longer finite.
template <class Lane, class State, class Gradient>
[[gnu::always_inline]] inline typename Lane::F update_at(
    State& state, const Gradient* gradient, kernels::AdamDecay decay,
    const kernels::AdamOperands<typename Lane::F>& operands, unsigned long i) {
  typename Lane::F p, m, v;
  state.template load<Lane>(i, p, m, v);
  const auto finite = kernels::adam_update<Lane>(decay, operands, Lane::load(gradient + i), p, m, v);
  state.template store<Lane>(i, p, m, v);
  return finite;
}

template <class Gradient>
struct Loop {
  const kernels::AdamDecay decay;
  const kernels::AdamOperands<WideLane::F> operands;
  const kernels::AdamOperands<float> scalar_operands;
  const Gradient* const gradient;
  WideLane::F finite = WideLane::F(0.0f);
  float tail_finite = 0.0f;

  Loop(const kernels::AdamCoefficients& coefficients, const AdamBlock& block)
      : decay(coefficients.decay_mode),
        operands(coefficients),
        scalar_operands(coefficients),
        gradient(static_cast<const Gradient*>(block.gradient)) {}

  template <class State>
  [[gnu::always_inline]] inline void run(State&& state, unsigned long begin, unsigned long end) {
    const unsigned long whole = begin + (end - begin) / WideLane::size * WideLane::size;
    for (unsigned long i = begin; i < whole; i += WideLane::size) {
      state.prefetch(i + ahead);
      __builtin_prefetch(gradient + i + ahead, /*rw=*/0);
      finite = finite + update_at<WideLane>(state, gradient, decay, operands, i);
    }
    for (unsigned long i = whole; i < end; ++i) {
      tail_finite += update_at<ScalarLane>(state, gradient, decay, scalar_operands, i);
    }
  }
  [[nodiscard]] bool all_finite() const { return WideLane::is_zero(finite) && tail_finite == 0.0f; }
};

template <class Gradient, class State>
bool update(const kernels::AdamCoefficients& coefficients, const AdamBlock& block) noexcept {
  Loop<Gradient> loop(coefficients, block);
  loop.run(State(block), 0, block.count);
  return loop.all_finite();
}

template <class Gradient>
bool update_q8(const kernels::AdamCoefficients& coefficients, const AdamBlock& block) noexcept {
  Loop<Gradient> loop(coefficients, block);
  for (unsigned long begin = 0; begin < block.count; begin += kernels::q8_run) {
    Q8Run run(block, begin);
    loop.run(run, begin, run.end());
    run.encode();
  }
  return loop.all_finite();
}

using kernels::Bf16;
using kernels::Fp16;

constexpr AdamKernels all_kernels = {{
    {{update<float, Fp32State<float>>, update<float, Fp32State<Bf16>>, update<float, Fp32State<Fp16>>},
     {update<Bf16, Fp32State<float>>, update<Bf16, Fp32State<Bf16>>, update<Bf16, Fp32State<Fp16>>},
     {update<Fp16, Fp32State<float>>, update<Fp16, Fp32State<Bf16>>, update<Fp16, Fp32State<Fp16>>}},
    {{nullptr, update<float, SplitState>, nullptr},
     {nullptr, update<Bf16, SplitState>, nullptr},
     {nullptr, update<Fp16, SplitState>, nullptr}},
    {{nullptr, update<float, SplitBf16State>, nullptr},
     {nullptr, update<Bf16, SplitBf16State>, nullptr},
     {nullptr, update<Fp16, SplitBf16State>, nullptr}},
    {{nullptr, update_q8<float>, nullptr},
     {nullptr, update_q8<Bf16>, nullptr},
     {nullptr, update_q8<Fp16>, nullptr}},
}};
