#pragma once

// State format split_q8 in the CUDA Adam kernel. Internal to the CUDA sources.

#include "kernels/cuda_adam_states.hpp"
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
  using M = Q8M<ScalarLane>;
  using V = Q8V<ScalarLane>;
  struct Pair {
    M m;
    V v;
  };

  __device__ Q8Scales(const TileOperands& tile, const Run& run)
      : m_base_(run.state_of(tile, StateFormat::split_q8) + 4 * run.length + (run.length + 1) / 2 +
                run.begin / q8_run),
        v_base_(m_base_ + (run.length + q8_run - 1) / q8_run),
        old_{M(*m_base_), V(*v_base_)},
        now_(old_) {}

  [[nodiscard]] __device__ const Pair& old() const { return old_; }
  [[nodiscard]] __device__ const Pair& now() const { return now_; }

  template <class Slots, class State, class Gradient>
  __device__ void add(const Slots& slots, AdamDecay decay, const State& state,
                      const Gradient (&gradient)[Slots::count]) {
#pragma unroll
    for (unsigned k = 0; k < Slots::count; ++k) {
      gradient_ = ScalarLane::larger(gradient_, bits_of(widen(gradient[k])) & ~sign_bit);
      m_word_ = ScalarLane::larger(m_word_, state.words.at[k] & 0x7f80u);
      v_code_ = ScalarLane::larger(v_code_, slots.holds(k) ? state.code_of_v(k) : 0);
      if (decay == AdamDecay::l2) master_ = ScalarLane::larger(master_, state.masters.upper.at[k] & 0x7fffu);
    }
  }
  __device__ void renew(AdamDecay decay, const Coefficients& coefficients) {
    const float master = decay == AdamDecay::l2 ? bound_of_master(largest_of_warp(master_)) : 0.0f;
    const auto bounds = q8_bounds(
        decay, coefficients, float_of(largest_of_warp(gradient_)), master,
        {old_.m.decoded(largest_of_warp(m_word_), 1.0f), q8_bound_of_v(old_.v, largest_of_warp(v_code_))});
    const U32 m = M::Code::stored_base(bits_of(bounds.m) & ~sign_bit),
              v = V::Code::stored_base(bits_of(bounds.v) & ~sign_bit);
    now_ = {M(m), V(v)};
    __syncwarp();  // all threads have read the old ones
    if (threadIdx.x % warp_threads == 0) {
      *m_base_ = static_cast<U8>(m);
      *v_base_ = static_cast<U8>(v);
    }
  }

 private:
  U8 *m_base_, *v_base_;
  Pair old_, now_;
  U32 gradient_ = 0, m_word_ = 0, v_code_ = 0, master_ = 0;  // the largest, as bits
};

/// Remainder of the master; m in nine bits and v in eleven, rounded stochastically.
struct SplitQ8Format {
  static constexpr StateFormat format = StateFormat::split_q8;
  static constexpr unsigned group = group_of<U16>, narrow_group = 2;  // two nibbles in a byte
  using Scales = Q8Scales;

  template <class Slots>
  struct State {
    using V = Scales::V;
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

    __device__ void update(const Slots& slots, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           float gradient, Largest<ScalarLane>& largest) {
      const Scales::Pair &old = scales.old(), &now = scales.now();
      const U32 random = random_of<ScalarLane>(seed, begin + slots.element(k));
      const Moments<float> decayed_ones{old.m.decoded(words.at[k], coefficients.beta1),
                                        old.v.decoded(code_of_v(k)) * coefficients.beta2};
      float p = masters.get(k, 0);
      const auto moments = updated_moments<ScalarLane>(decay, coefficients, gradient, p, decayed_ones);
      p = updated_master<ScalarLane>(
          decay, coefficients, p,
          adam_ratio<ScalarLane>(coefficients, moments.m, ScalarLane::root(moments.v)));
      masters.updated[k] = p;
      const U32 v = V::rounded(moments.v, random), code = now.v.encoded(v, random);
      words.at[k] = static_cast<U16>(now.m.encoded(moments.m, random) | V::word_part(code));
      new_nibbles |= V::nibble_part(code) << 4 * k;
      largest.add(p);
      largest.add_positive_upper_words(v);
    }
    __device__ void divide() {
#pragma unroll
      for (unsigned k = 0; k < Slots::count; ++k) masters.divide(k);
    }
    [[nodiscard]] __device__ U32 code_of_v(unsigned k) const {
      return V::joined(words.at[k], nibbles >> 4 * k & 0xfu);
    }
  };
};

}  // namespace penstock::kernels
