#pragma once

// State format split_q8 in the CUDA Adam kernel. Internal to the CUDA sources.

#include "kernels/cuda_adam_states.hpp"
#include "kernels/cuda_pair_lane.hpp"
#include "kernels/q8_bound.hpp"

namespace penstock::kernels {

/// The largest of the numbers that the threads of a warp, all of them, call this with.
__device__ inline U32 largest_of_warp(U32 x) {
  return __reduce_max_sync(0xffffffffu, x);
}

/// The scales of a run's moments: those that it is decoded with, and after renew() those that it is encoded with. The
/// threads of a warp add() the run's elements before that.
class Q8Scales {
 public:
  static constexpr bool exist = true;
  using W = PairLane::W;
  struct Pair {
    Q8M<PairLane> m;
    Q8V<PairLane> v;
  };

  __device__ Q8Scales(const TileOperands& tile, const Run& run)
      : m_base_(run.state_of(tile, StateFormat::split_q8) + 4 * run.length + (run.length + 1) / 2 +
                run.begin / q8_run),
        v_base_(m_base_ + (run.length + q8_run - 1) / q8_run),
        old_m_(*m_base_),
        old_v_(*v_base_),
        old_{Q8M<PairLane>(old_m_), Q8V<PairLane>(old_v_)},
        now_(old_) {}

  [[nodiscard]] __device__ const Pair& old() const { return old_; }
  [[nodiscard]] __device__ const Pair& now() const { return now_; }

  template <class Slots, class State, class Gradient>
  __device__ void add(const Slots& slots, AdamDecay decay, const State& state,
                      const Gradient (&gradient)[Slots::count]) {
#pragma unroll
    for (unsigned k = 0; k < Slots::count; ++k) {
      gradient_ = ScalarLane::larger(gradient_, bits_of(widen(gradient[k])) & ~sign_bit);
    }
#pragma unroll
    for (unsigned k = 0; k < Slots::count; k += PairLane::size) {
      m_words_ = PairLane::larger(m_words_, W(&state.words.at[k]) & W(U16{0x7f80}));
      v_codes_ = PairLane::larger(v_codes_, state.held(slots, k, state.codes_of_v(k)));
      if (decay == AdamDecay::l2) {
        masters_ = PairLane::larger(masters_, W(&state.masters.upper.at[k]) & W(U16{0x7fff}));
      }
    }
  }
  __device__ void renew(AdamDecay decay, const Coefficients& coefficients) {
    const float master = decay == AdamDecay::l2 ? bound_of_master(largest_of_warp(masters_)) : 0.0f;
    const Q8M<ScalarLane> old_m(old_m_);
    const Q8V<ScalarLane> old_v(old_v_);
    const auto bounds = q8_bounds(
        decay, coefficients, float_of(kernels::largest_of_warp(gradient_)), master,
        {old_m.decoded(largest_of_warp(m_words_), 1.0f), q8_bound_of_v(old_v, largest_of_warp(v_codes_))});
    const U32 m = Q8M<ScalarLane>::Code::stored_base(bits_of(bounds.m) & ~sign_bit),
              v = Q8V<ScalarLane>::Code::stored_base(bits_of(bounds.v) & ~sign_bit);
    now_ = {Q8M<PairLane>(m), Q8V<PairLane>(v)};
    __syncwarp();  // all threads have read the old ones
    if (threadIdx.x % warp_threads == 0) {
      *m_base_ = static_cast<U8>(m);
      *v_base_ = static_cast<U8>(v);
    }
  }

 private:
  __device__ static U32 largest_of_warp(W words) {
    return kernels::largest_of_warp(ScalarLane::larger(words.of_even(), words.of_odd()));
  }

  U8 *m_base_, *v_base_;
  U32 old_m_, old_v_;  // stored bases
  Pair old_, now_;
  U32 gradient_ = 0;                                       // the largest, as bits
  W m_words_{U16{0}}, v_codes_{U16{0}}, masters_{U16{0}};  // the largest of even and of odd elements
};

/// Remainder of the master; m in nine bits and v in eleven, rounded stochastically. Two elements are updated at once.
struct SplitQ8Format {
  static constexpr StateFormat format = StateFormat::split_q8;
  static constexpr unsigned group = group_of<U16>, narrow_group = 2;  // two nibbles in a byte
  using Lane = PairLane;
  using Scales = Q8Scales;

  template <class Slots>
  struct State {
    using W = PairLane::W;
    using V = Q8V<PairLane>;
    SplitMasters<Slots> masters;
    Array<U16, Slots> words;
    U8* nibbles_from;
    U32 seed, begin;
    const Scales& scales;
    U32 nibbles = 0, new_nibbles = 0;  ///< that of slot k begins at bit 4 k

    __device__ State(const TileOperands& tile, const Run& run, const Scales& run_scales)
        : masters(run.parameter_of<U16>(tile), run.states_of<U16>(tile, format)),
          words(masters.remainder.from + run.length),
          nibbles_from(run.state_of(tile, format) + 4 * run.length + run.begin / 2),
          seed(run.seed_of(tile)),
          begin(run.begin),
          scales(run_scales) {}

    __device__ void load(const Slots& slots) {
      masters.load(slots), words.load(slots);
      const U8* const from = nibbles_from + slots.element(0) / 2;
      if constexpr (Slots::is_full) {
        nibbles = *reinterpret_cast<const U32*>(from);
      } else {
        nibbles = slots.holds(0) ? *from : 0;
        new_nibbles = slots.holds(1) ? 0 : nibbles & 0xf0u;  // not of this tile: stays
      }
    }
    __device__ void store(const Slots& slots) const {
      masters.store(slots), words.store(slots);
      U8* const to = nibbles_from + slots.element(0) / 2;
      if constexpr (Slots::is_full) {
        *reinterpret_cast<U32*>(to) = new_nibbles;
      } else if (slots.holds(0)) {
        *to = static_cast<U8>(new_nibbles);
      }
    }

    /// Updates slots k, which holds an element, and k + 1, which may be empty.
    __device__ void update(const Slots& slots, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           PairLane::F gradient, Largest<PairLane>& largest) {
      const AdamOperands<PairLane> operands(coefficients);
      const Scales::Pair &old = scales.old(), &now = scales.now();
      const auto random = random_of<PairLane>(seed, begin + slots.element(k));
      const Moments<PairLane::F> decayed_ones{old.m.decoded(W(&words.at[k]), operands.beta1),
                                              old.v.decoded(codes_of_v(k)) * operands.beta2};
      auto p = PairLane::value_of(
          SplitMaster<PairLane>(W(&masters.upper.at[k]), W(&masters.remainder.at[k])).bits());
      const auto moments = updated_moments<PairLane>(decay, operands, gradient, p, decayed_ones);
      p = updated_master<PairLane>(decay, operands, p,
                                   adam_ratio<PairLane>(operands, moments.m, PairLane::root(moments.v)));
      masters.updated[k] = p.a, masters.updated[k + 1] = p.b;
      const W v = V::rounded(moments.v, random), code = held(slots, k, now.v.encoded(v, random));
      (now.m.encoded(moments.m, random) | V::word_part(code)).put(&words.at[k]);
      const U32 pair = V::nibble_part(code).both;
      new_nibbles |= ((pair | pair >> 12) & 0xffu) << 4 * k;
      largest.add({p.a, slots.holds(k + 1) ? p.b : 0.0f});
      largest.add_positive_upper_words(held(slots, k, v));
    }
    __device__ void divide() {
#pragma unroll
      for (unsigned k = 0; k < Slots::count; k += PairLane::size) {
        const SplitMaster<PairLane> halves(PairLane::bits_of({masters.updated[k], masters.updated[k + 1]}));
        halves.parameter.put(&masters.upper.at[k]);
        halves.remainder.put(&masters.remainder.at[k]);
      }
    }
    /// The codes of v in slots k and k + 1.
    [[nodiscard]] __device__ W codes_of_v(unsigned k) const {
      const U32 pair = nibbles >> 4 * k & 0xffu;
      return V::joined(W(&words.at[k]), W::of(pair | pair << 12) & W(U16{0xf}));
    }
    /// Without the words of empty slots.
    [[nodiscard]] __device__ static W held(const Slots& slots, unsigned k, W words) {
      return slots.holds(k + 1) ? words : slots.holds(k) ? words.even_only() : W(U16{0});
    }
  };
};

}  // namespace penstock::kernels
