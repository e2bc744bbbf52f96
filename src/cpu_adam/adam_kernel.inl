// The Adam loop over one block. Each adam_kernel_<isa>.cpp includes this once, inside an anonymous namespace,
// after defining WideLane and PairLane there: what adam_update computes in, see kernels/lane.hpp. Tails are
// scalar.

using kernels::ScalarLane;
using kernels::U16;
using kernels::U32;
using kernels::U8;

[[gnu::always_inline]] inline U32 largest(U32 x) {
  return x;
}

// How far ahead a format that says how to asks for memory, in elements. Streams of one byte an element move
// too slowly for the hardware's prefetchers; wider ones it follows better by itself. Past the end of the
// block these are addresses that nobody looks at, or the next block.
constexpr unsigned long ahead = 512;

#include "cpu_adam/adam_states.inl"

#include "cpu_adam/adam_q8_run.inl"

template <class Gradient, class WholeLane>
class Loop {
 public:
  Loop(const kernels::AdamCoefficients& coefficients, const AdamBlock& block)
      : decay_(coefficients.decay_mode),
        operands_(coefficients),
        scalar_operands_(coefficients),
        gradient_(static_cast<const Gradient*>(block.gradient)) {}

  /// Elements begin to end of a format whose moments are stored as they are made.
  template <class State>
  [[gnu::always_inline]] inline void run(const State& state, unsigned long begin, unsigned long end) {
    const unsigned long whole = begin + (end - begin) / WholeLane::size * WholeLane::size;
    update_masters<WholeLane>(
        state, begin, whole, [&](unsigned long i) __attribute__((always_inline)) {
          return update_moments<WholeLane>(state, i, largest_);
        });
    update_masters<ScalarLane>(
        state, whole, end, [&](unsigned long i) __attribute__((always_inline)) {
          return update_moments<ScalarLane>(state, i, tail_largest_);
        });
  }

  /// New moments of elements begin to end of a run, which wait in it; `largest` is raised to theirs.
  [[gnu::always_inline]] inline void update_moments(const Q8Run& run, unsigned long begin, unsigned long end,
                                                    kernels::Largest<ScalarLane>& largest_moments) {
    kernels::Largest<WholeLane> wide;
    for (; end - begin >= WholeLane::size; begin += WholeLane::size) {
      update_moments<WholeLane>(run, begin, wide);
    }
    for (; begin < end; ++begin) update_moments<ScalarLane>(run, begin, largest_moments);
    largest_moments.m = ScalarLane::larger(largest_moments.m, largest(wide.m));
    largest_moments.v = ScalarLane::larger(largest_moments.v, largest(wide.v));
    tail_largest_.v = ScalarLane::larger(tail_largest_.v, largest_moments.v);
  }
  /// Their masters, and the codes of their moments.
  [[gnu::always_inline]] inline void finish(const Q8Run& run, unsigned long begin, unsigned long end) {
    const unsigned long whole = begin + (end - begin) / WholeLane::size * WholeLane::size;
    finish_in<WholeLane>(run, begin, whole);
    finish_in<ScalarLane>(run, whole, end);
  }

  [[nodiscard]] bool all_finite() const {
    return ScalarLane::larger(largest(largest_.p), tail_largest_.p) < kernels::not_finite &&
           ScalarLane::larger(largest(largest_.v), tail_largest_.v) < kernels::not_finite;
  }

 private:
  template <class Lane>
  [[gnu::always_inline]] inline void finish_in(const Q8Run& run, unsigned long begin, unsigned long end) {
    const Q8Scales<Lane> scales = run.template scales<Lane>();
    update_masters<Lane>(
        run, begin, end, [&](unsigned long i) __attribute__((always_inline)) {
          return run.template encode<Lane>(i, scales);
        });
  }

  /// Masters begin to end, by the moments that `moments_at` returns. Roots and quotients are asked for a turn
  /// before they are needed: what waits for them would fill the processor's queues, and keep the next turn's
  /// work out. 1.2 times the rate.
  template <class Lane, class State, class MomentsAt>
  [[gnu::always_inline]] inline void update_masters(const State& state, unsigned long begin,
                                                    unsigned long end, MomentsAt moments_at) {
    using F = typename Lane::F;
    const auto root = [&](unsigned long i, F& m) __attribute__((always_inline)) {
      const Moments<Lane> moments = moments_at(i);
      m = moments.m;
      return Lane::root(moments.v);
    };
    const auto ratio = [&](F m, F root_of_v) __attribute__((always_inline)) {
      return kernels::adam_ratio<Lane>(operands<Lane>(), m, root_of_v);
    };
    if (begin == end) return;
    F m, next_m, awaited_root = root(begin, m);
    if (end - begin == Lane::size) return update_master<Lane>(state, begin, ratio(m, awaited_root));
    F awaited_ratio = ratio(m, awaited_root);
    awaited_root = root(begin + Lane::size, m);
    for (unsigned long i = begin + 2 * Lane::size; i < end; i += Lane::size) {
      const F next_root = root(i, next_m);
      update_master<Lane>(state, i - 2 * Lane::size, awaited_ratio);
      awaited_ratio = ratio(m, awaited_root);
      awaited_root = next_root;
      m = next_m;
    }
    update_master<Lane>(state, end - 2 * Lane::size, awaited_ratio);
    update_master<Lane>(state, end - Lane::size, ratio(m, awaited_root));
  }

  template <class Lane, class State>
  [[gnu::always_inline]] inline Moments<Lane> update_moments(const State& state, unsigned long i,
                                                             kernels::Largest<Lane>& largest) const {
    if constexpr (requires { state.prefetch_moments(i); }) {
      state.prefetch_moments(i + ahead);
      __builtin_prefetch(gradient_ + i + ahead, /*rw=*/0);
    }
    typename Lane::F p(0.0f);
    if (decay_ == kernels::AdamDecay::l2) p = state.template load_master<Lane>(i);
    Moments<Lane> moments = state.template load_moments<Lane>(i);
    kernels::update_moments<Lane>(decay_, operands<Lane>(), Lane::load(gradient_ + i), p, moments.m,
                                  moments.v);
    state.template store_moments<Lane>(i, moments);
    largest.add_moments(moments.m, moments.v);
    return moments;
  }
  template <class Lane, class State>
  [[gnu::always_inline]] inline void update_master(const State& state, unsigned long i,
                                                   typename Lane::F ratio) {
    if constexpr (requires { state.prefetch_master(i); }) state.prefetch_master(i + ahead);
    const auto p =
        kernels::updated_master(decay_, operands<Lane>(), state.template load_master<Lane>(i), ratio);
    state.template store_master<Lane>(i, p);
    if constexpr (Lane::size == WholeLane::size) {
      largest_.add_master(p);
    } else {
      tail_largest_.add_master(p);
    }
  }
  template <class Lane>
  [[gnu::always_inline]] inline const kernels::AdamOperands<typename Lane::F>& operands() const {
    if constexpr (Lane::size == WholeLane::size) {
      return operands_;
    } else {
      return scalar_operands_;
    }
  }

  const kernels::AdamDecay decay_;
  const kernels::AdamOperands<typename WholeLane::F> operands_;
  const kernels::AdamOperands<float> scalar_operands_;
  const Gradient* const gradient_;
  kernels::Largest<WholeLane> largest_;
  kernels::Largest<ScalarLane> tail_largest_;
};

/// Calls body(coefficients, begin, end) for each piece that elements begin to end of the block are in.
template <class Body>
[[gnu::always_inline]] inline void for_pieces(const AdamBlock& block, unsigned long begin, unsigned long end,
                                              const Body& body) {
  const AdamPiece* piece = block.pieces;
  while (begin < end) {
    const unsigned long piece_end = piece->end - block.first;
    if (piece_end > begin) {
      const unsigned long some_end = piece_end < end ? piece_end : end;
      body(piece->coefficients, begin, some_end);
      begin = some_end;
    }
    ++piece;
  }
}

template <class Gradient, class State>
bool update(const AdamBlock& block) noexcept {
  const State state(block);
  bool finite = true;
  for_pieces(block, 0, block.count,
             [&](const kernels::AdamCoefficients& coefficients, unsigned long begin, unsigned long end) {
               Loop<Gradient, typename State::Lane> loop(coefficients, block);
               loop.run(state, begin, end);
               finite &= loop.all_finite();
             });
  if (block.parameter_past_caches) fence();
  return finite;
}

/// Runs that are in several pieces, one after the other.
template <class Gradient>
bool update_q8_pieces(const AdamBlock& block) noexcept {
  bool finite = true;
  Q8Buffer buffer;
  for (unsigned long first = 0; first < block.count; first += kernels::q8_run) {
    const Q8Run run(block, first, buffer);
    kernels::Largest<ScalarLane> largest_moments;
    for_pieces(
        block, run.begin(), run.end(),
        [&](const kernels::AdamCoefficients& coefficients, unsigned long begin, unsigned long end) {
          Loop<Gradient, Q8Run::Lane>(coefficients, block).update_moments(run, begin, end, largest_moments);
        });
    run.rescale(largest_moments.m, largest_moments.v);
    for_pieces(block, run.begin(), run.end(),
               [&](const kernels::AdamCoefficients& coefficients, unsigned long begin, unsigned long end) {
                 Loop<Gradient, Q8Run::Lane> loop(coefficients, block);
                 loop.finish(run, begin, end);
                 finite &= loop.all_finite();
               });
    finite &= largest_moments.v < kernels::not_finite;
  }
  return finite;
}

template <class Gradient>
bool update_q8(const AdamBlock& block) noexcept {
  if (block.pieces->end - block.first < block.count) return update_q8_pieces<Gradient>(block);
  Loop<Gradient, Q8Run::Lane> loop(block.pieces->coefficients, block);
  const auto update_moments = [&](const Q8Run& run) __attribute__((always_inline)) {
    kernels::Largest<ScalarLane> largest_moments;
    loop.update_moments(run, run.begin(), run.end(), largest_moments);
    run.rescale(largest_moments.m, largest_moments.v);
  };
  Q8Buffer buffers[2];
  Q8Run run(block, 0, buffers[0]);
  update_moments(run);
  // The next run's moments come between, so that nothing waits until this one's scales are known.
  for (unsigned long number = 1; run.end() < block.count; ++number) {
    const Q8Run next(block, run.end(), buffers[number % 2]);
    update_moments(next);
    loop.finish(run, run.begin(), run.end());
    run = next;
  }
  loop.finish(run, run.begin(), run.end());
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
