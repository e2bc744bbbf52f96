// The loop of all optimizers over one block. Each adam_kernel_<isa>.cpp includes this once, inside an anonymous
// namespace, after defining WideLane and PairLane there: the Lanes of the computation, see kernels/lane.hpp. The last
// elements, which do not fill a lane, are computed one by one.

using kernels::Moments;
using kernels::ScalarLane;
using kernels::U16;
using kernels::U32;
using kernels::U8;

[[gnu::always_inline]] inline U32 largest(U32 x) {
  return x;
}

// The prefetch distance in elements, for formats that define prefetch_moments() and prefetch_master(). Hardware
// prefetchers handle streams of one byte per element badly because these advance slowly; wider streams need no help.
// Near the end of the block the prefetched addresses belong to the next block or are never read.
constexpr unsigned long ahead = 512;

#include "cpu_adam/largest.inl"

#include "cpu_adam/adam_ties.inl"

#include "cpu_adam/adam_states.inl"

#include "cpu_adam/update_rules.inl"

/// Calls body(coefficients, begin, end) for each piece that overlaps elements [begin, end) of a block; the range is
/// not empty. `piece` is the first such piece or an earlier one. Returns the last such piece.
template <class Body>
[[gnu::always_inline]] inline const Piece* for_pieces(const Block& block, const Piece* piece,
                                                      unsigned long begin, unsigned long end,
                                                      const Body& body) {
  while (piece->end - block.first <= begin) ++piece;
  for (;; ++piece) {
    const unsigned long piece_end = piece->end - block.first, some_end = piece_end < end ? piece_end : end;
    body(piece->coefficients, begin, some_end);
    if (some_end == end) return piece;
    begin = some_end;
  }
}

#include "cpu_adam/adam_q8_state.inl"

template <class Rule, class Gradient, class WholeLane>
class Loop {
 public:
  Loop(const kernels::AdamCoefficients& coefficients, const Block& block)
      : decay_(coefficients.decay_mode),
        operands_(coefficients),
        scalar_operands_(coefficients),
        gradient_(static_cast<const Gradient*>(block.gradient)) {}

  template <class State>
  [[gnu::always_inline]] inline void run(State& state, unsigned long begin, unsigned long end) {
    if (end - begin >= 2 * WholeLane::size) {
      const unsigned long whole = begin + (end - begin) / WholeLane::size * WholeLane::size;
      run_lanes(state, begin, whole);
      begin = whole;
    }
    for (; begin < end; ++begin) run_element(state, begin);
  }

  [[nodiscard]] bool all_finite() const {
    return largest(largest_.most) < kernels::not_finite && tail_largest_.most < kernels::not_finite;
  }

 private:
  /// Software-pipelined: roots and quotients are started one iteration before they are used. Otherwise the
  /// instructions that depend on the divider fill the out-of-order window and block the next iteration's work (the
  /// pipelined loop is 1.2 times as fast). Needs at least two lanes of elements.
  template <class State>
  [[gnu::always_inline]] inline void run_lanes(State& state, unsigned long begin, unsigned long end) {
    using Lane = WholeLane;
    using F = typename Lane::F;
    const auto root = [&](unsigned long i, F& numerator) __attribute__((always_inline)) {
      const auto moments = update_moments(state, i, largest_);
      numerator = moments.m;
      return Rule::template root<Lane>(moments.v);
    };
    const auto ratio = [&](F numerator, F root_of_radicand) __attribute__((always_inline)) {
      return Rule::template ratio<Lane>(operands_, numerator, root_of_radicand);
    };
    begin_run(state, begin, end);
    F numerator, next_numerator, awaited_root = root(begin, numerator);
    F awaited_ratio = ratio(numerator, awaited_root);
    awaited_root = root(begin + Lane::size, numerator);
    for (unsigned long i = begin + 2 * Lane::size; i < end;) {
      for (const unsigned long run_end = begin_run(state, i, end); i < run_end; i += Lane::size) {
        const F next_root = root(i, next_numerator);
        update_master(state, i - 2 * Lane::size, awaited_ratio, largest_);
        awaited_ratio = ratio(numerator, awaited_root);
        awaited_root = next_root;
        numerator = next_numerator;
      }
    }
    update_master(state, end - 2 * Lane::size, awaited_ratio, largest_);
    update_master(state, end - Lane::size, ratio(numerator, awaited_root), largest_);
  }

  template <class State>
  [[gnu::always_inline]] inline void run_element(State& state, unsigned long i) {
    begin_run(state, i, i + 1);
    const auto moments = update_moments(state, i, tail_largest_);
    const float root = Rule::template root<ScalarLane>(moments.v);
    update_master(state, i, Rule::template ratio<ScalarLane>(scalar_operands_, moments.m, root),
                  tail_largest_);
  }

  /// Starts the run of element i in formats that have runs, and returns the run's end, or `end` if that comes first.
  /// In other formats returns `end`.
  template <class State>
  [[gnu::always_inline]] inline unsigned long begin_run(State& state, unsigned long i, unsigned long end) {
    if constexpr (requires { state.begin_run(i); }) {
      const unsigned long run_end = state.begin_run(i);
      return run_end < end ? run_end : end;
    } else {
      return end;
    }
  }
  template <class State, class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> update_moments(State& state, unsigned long i,
                                                                         kernels::Largest<Lane>& largest) {
    if constexpr (requires { state.prefetch_moments(i); }) {
      state.prefetch_moments(i + ahead);
      __builtin_prefetch(gradient_ + i + ahead, /*rw=*/0);
    }
    return Rule::template advance<Lane>(state, i, decay_, operands<Lane>(), gradient_, largest);
  }
  template <class State, class Lane>
  [[gnu::always_inline]] inline void update_master(const State& state, unsigned long i,
                                                   typename Lane::F ratio, kernels::Largest<Lane>& largest) {
    if constexpr (requires { state.prefetch_master(i); }) state.prefetch_master(i + ahead);
    const auto p = kernels::updated_master<Lane>(Rule::decay_of_master(decay_), operands<Lane>(),
                                                 state.template load_master<Lane>(i), ratio);
    state.template store_master<Lane>(i, p, largest);
  }
  template <class Lane>
  [[gnu::always_inline]] inline const kernels::AdamOperands<Lane>& operands() const {
    if constexpr (Lane::size == WholeLane::size) {
      return operands_;
    } else {
      return scalar_operands_;
    }
  }

  const kernels::AdamDecay decay_;
  const kernels::AdamOperands<WholeLane> operands_;
  const kernels::AdamOperands<ScalarLane> scalar_operands_;
  const Gradient* const gradient_;
  kernels::Largest<WholeLane> largest_;
  kernels::Largest<ScalarLane> tail_largest_;
};

template <class Rule, class Gradient, class State>
bool update(const Block& block) noexcept {
  State state(block);
  bool finite = true;
  for_pieces(block, block.pieces, 0, block.count,
             [&](const kernels::AdamCoefficients& coefficients, unsigned long begin, unsigned long end) {
               Loop<Rule, Gradient, typename State::Lane> loop(coefficients, block);
               loop.run(state, begin, end);
               finite &= loop.all_finite();
             });
  if constexpr (requires { state.finish(finite); }) state.finish(finite);
  if (block.nontemporal_parameter) fence();
  return finite;
}

/// A register must not span two runs, and its nibbles must begin at a byte. Pieces may begin inside a run and at an odd
/// element, so the loop splits at run boundaries and after such an element.
template <class Gradient>
bool update_q8(const Block& block) noexcept {
  Q8State<Gradient> state(block);
  bool finite = true;
  for_pieces(block, block.pieces, 0, block.count,
             [&](const kernels::AdamCoefficients& coefficients, unsigned long begin, unsigned long end) {
               Loop<AdamRule, Gradient, PairLane> loop(coefficients, block);
               while (begin < end) {
                 const unsigned long into = begin % kernels::q8_run, left = end - begin;
                 const bool rest_of_run = into > 0 && kernels::q8_run - into < left;
                 unsigned long some = rest_of_run ? kernels::q8_run - into : left;
                 if (begin % 2 > 0) some = 1;
                 loop.run(state, begin, begin + some);
                 begin += some;
               }
               finite &= loop.all_finite();
             });
  state.finish(finite);
  return finite;
}

using kernels::Bf16;
using kernels::Fp16;

template <class Rule, class Stored>
constexpr FormatKernels fp32_kernels = {
    {{update<Rule, float, Fp32State<Stored, float>>, update<Rule, float, Fp32State<Stored, Bf16>>,
      update<Rule, float, Fp32State<Stored, Fp16>>},
     {update<Rule, Bf16, Fp32State<Stored, float>>, update<Rule, Bf16, Fp32State<Stored, Bf16>>,
      update<Rule, Bf16, Fp32State<Stored, Fp16>>},
     {update<Rule, Fp16, Fp32State<Stored, float>>, update<Rule, Fp16, Fp32State<Stored, Bf16>>,
      update<Rule, Fp16, Fp32State<Stored, Fp16>>}}};
template <class Rule, class Stored>
constexpr FormatKernels moments_kernels = {
    {{update<Rule, float, MomentsState<Stored, float>>, update<Rule, float, MomentsState<Stored, Bf16>>,
      update<Rule, float, MomentsState<Stored, Fp16>>},
     {update<Rule, Bf16, MomentsState<Stored, float>>, update<Rule, Bf16, MomentsState<Stored, Bf16>>,
      update<Rule, Bf16, MomentsState<Stored, Fp16>>},
     {update<Rule, Fp16, MomentsState<Stored, float>>, update<Rule, Fp16, MomentsState<Stored, Bf16>>,
      update<Rule, Fp16, MomentsState<Stored, Fp16>>}}};
/// Of a format that takes bf16 parameters alone.
template <class State>
constexpr FormatKernels bf16_kernels = {{{nullptr, update<AdamRule, float, State>, nullptr},
                                         {nullptr, update<AdamRule, Bf16, State>, nullptr},
                                         {nullptr, update<AdamRule, Fp16, State>, nullptr}}};
constexpr FormatKernels q8_kernels = {{{nullptr, update_q8<float>, nullptr},
                                       {nullptr, update_q8<Bf16>, nullptr},
                                       {nullptr, update_q8<Fp16>, nullptr}}};
constexpr FormatKernels no_kernels = {};

constexpr Kernels all_kernels = {
    {{fp32_kernels<AdamRule, Fp32Moments>, bf16_kernels<SplitState>, bf16_kernels<SplitBf16State>, q8_kernels,
      moments_kernels<AdamRule, Fp32Moments>, bf16_kernels<MomentsState<Bf16Moments, Bf16>>},
     {fp32_kernels<LionRule, Fp32Moment>, no_kernels, no_kernels, no_kernels,
      moments_kernels<LionRule, Fp32Moment>, no_kernels},
     {fp32_kernels<AdagradRule, Fp32Moment>, no_kernels, no_kernels, no_kernels,
      moments_kernels<AdagradRule, Fp32Moment>, no_kernels}}};
