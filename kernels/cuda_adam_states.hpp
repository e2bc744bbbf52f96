#pragma once

// A tile's state in the formats of the CUDA Adam kernel: a warp updates a run of a block, and each of its threads the
// elements in its slots, in registers. A format defines
//   group, narrow_group  elements of a thread that it accesses at once in aligned runs, and at least in others
//   Lane                 of the elements that update() updates at once
//   Scales               of a run's moments; empty if `exist` is false
//   State<Slots>         the elements in a thread's slots. update() updates a lane and adds it to `largest`, which
//                        shows whether one is not finite; in split formats divide() then divides all masters
// Internal to the CUDA sources.

#include "kernels/adam_formula.hpp"
#include "kernels/cuda_access.hpp"
#include "kernels/q8_bound.hpp"
#include "kernels/rounding_seed.hpp"
#include "kernels/state_layout.hpp"

namespace penstock::kernels {

using Coefficients = AdamOperands<ScalarLane>;

/// Elements of a thread: those of a warp are a run of split_q8.
inline constexpr unsigned adam_slots = q8_run / warp_threads;

/// What a kernel updates, in device memory.
struct TileOperands {
  U8* state;
  void* parameter;
  std::uint64_t step, first_element;  ///< the seed of stochastic rounding
};

/// Up to q8_run consecutive elements of one block of a tile.
struct Run {
  std::uint64_t block, block_first;  ///< the block's number and first element in the tile
  unsigned length;                   ///< the block's number of elements
  unsigned begin, count;             ///< of the run, in the block

  __device__ Run(std::uint64_t number, std::uint64_t tile_elements)
      : block(number / (adam_block_elements / q8_run)),
        block_first(block * adam_block_elements),
        length(static_cast<unsigned>(min(adam_block_elements, tile_elements - block_first))),
        begin(static_cast<unsigned>(number % (adam_block_elements / q8_run)) * q8_run),
        count(min(q8_run, length - begin)) {}

  /// Whether it is aligned and whole in every array of a block, where the tile is aligned.
  [[nodiscard]] __device__ bool is_full() const { return count == q8_run && length % adam_slots == 0; }
  [[nodiscard]] __device__ U8* state_of(const TileOperands& tile, StateFormat format) const {
    return tile.state + *state_block_bytes(format, adam_block_elements) * block;
  }
  /// The run's part of the first array of states.
  template <class T>
  [[nodiscard]] __device__ T* states_of(const TileOperands& tile, StateFormat format) const {
    return reinterpret_cast<T*>(state_of(tile, format)) + begin;
  }
  template <class Parameter>
  [[nodiscard]] __device__ Parameter* parameter_of(const TileOperands& tile) const {
    return static_cast<Parameter*>(tile.parameter) + block_first + begin;
  }
  [[nodiscard]] __device__ U32 seed_of(const TileOperands& tile) const {
    return rounding_seed(tile.step, tile.first_element + block_first);
  }
};

struct NoScales {
  static constexpr bool exist = false;
  __device__ NoScales(const TileOperands&, const Run&) {}
};

/// An array of a block, or of parameters, and what the thread has of it.
template <class T, class Slots>
struct Array {
  T* from;  ///< the run's first element
  T at[Slots::count];

  __device__ explicit Array(T* run) : from(run) {}
  __device__ void load(const Slots& slots) { slots.load(from, at); }
  __device__ void store(const Slots& slots) const { slots.store(at, from); }
};

/// Masters, m and v in fp32.
template <class Slots>
struct Fp32States {
  Array<float, Slots> p, m, v;

  __device__ Fp32States(float* masters, float* moments, const Run& run)
      : p(masters), m(moments), v(moments + run.length) {}
  __device__ void load(const Slots& slots) { p.load(slots), m.load(slots), v.load(slots); }
  __device__ void store(const Slots& slots) const { p.store(slots), m.store(slots), v.store(slots); }

  __device__ void update(const Slots&, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                         float gradient, Largest<ScalarLane>& largest) {
    adam_update<ScalarLane>(decay, coefficients, gradient, p.at[k], m.at[k], v.at[k]);
    largest.add(p.at[k]);
    largest.add_positive(v.at[k]);
  }
};

/// m and v, in fp32 or bf16; the parameter is the master, in 16 bits. What has 16 bits is rounded stochastically.
template <StateFormat the_format, class Moment, class Parameter>
struct NarrowMasterFormat {
  static constexpr StateFormat format = the_format;
  static constexpr unsigned group = group_of<Moment>, narrow_group = 1;
  using Lane = ScalarLane;
  using Scales = NoScales;

  template <class Slots>
  struct State {
    Array<Parameter, Slots> p;
    Array<Moment, Slots> m, v;
    U32 seed, begin;

    __device__ State(const TileOperands& tile, const Run& run, const Scales&)
        : p(run.parameter_of<Parameter>(tile)),
          m(run.states_of<Moment>(tile, format)),
          v(m.from + run.length),
          seed(run.seed_of(tile)),
          begin(run.begin) {}
    __device__ void load(const Slots& slots) { p.load(slots), m.load(slots), v.load(slots); }
    __device__ void store(const Slots& slots) const { p.store(slots), m.store(slots), v.store(slots); }

    __device__ void update(const Slots& slots, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           float gradient, Largest<ScalarLane>& largest) {
      const U32 random = random_of<ScalarLane>(seed, begin + slots.element(k));
      float master = widen(p.at[k]), new_m = widen(m.at[k]), new_v = widen(v.at[k]);
      adam_update<ScalarLane>(decay, coefficients, gradient, master, new_m, new_v);
      const U32 word = NarrowMaster<Parameter>::template rounded<ScalarLane>(master, random);
      p.at[k] = {static_cast<U16>(word)};
      put(m.at[k], new_m, random), put(v.at[k], new_v, random);
      largest.add_positive_upper_words(finiteness_of<Parameter>(word));
      largest.add_positive(widen(v.at[k]));
    }

   private:
    __device__ static void put(float& to, float moment, U32) { to = moment; }
    __device__ static void put(Bf16& to, float moment, U32 random) {
      to = {static_cast<U16>(dithered(bits_of(moment), random) >> 16)};
    }
  };
};

template <class Parameter>
struct MomentsFormat : NarrowMasterFormat<StateFormat::moments, float, Parameter> {};
struct MomentsBf16Format : NarrowMasterFormat<StateFormat::moments_bf16, Bf16, Bf16> {};

/// m and v in fp32; the parameter, in fp32, is the master.
template <>
struct MomentsFormat<float> {
  static constexpr StateFormat format = StateFormat::moments;
  static constexpr unsigned group = group_of<float>, narrow_group = 1;
  using Lane = ScalarLane;
  using Scales = NoScales;

  template <class Slots>
  struct State : Fp32States<Slots> {
    __device__ State(const TileOperands& tile, const Run& run, const Scales&)
        : Fp32States<Slots>(run.parameter_of<float>(tile), run.states_of<float>(tile, format), run) {}
  };
};

/// Master, m and v in fp32; the parameter is derived.
template <class Parameter>
struct Fp32Format {
  static constexpr StateFormat format = StateFormat::fp32;
  static constexpr unsigned group = group_of<float>, narrow_group = 1;
  using Lane = ScalarLane;
  using Scales = NoScales;

  template <class Slots>
  struct State : Fp32States<Slots> {
    Array<Parameter, Slots> parameter;

    __device__ State(const TileOperands& tile, const Run& run, const Scales&)
        : Fp32States<Slots>(run.states_of<float>(tile, format),
                            run.states_of<float>(tile, format) + run.length, run),
          parameter(run.parameter_of<Parameter>(tile)) {}
    __device__ void store(const Slots& slots) const {
      Fp32States<Slots>::store(slots);
      parameter.store(slots);
    }

    __device__ void update(const Slots& slots, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           float gradient, Largest<ScalarLane>& largest) {
      Fp32States<Slots>::update(slots, k, decay, coefficients, gradient, largest);
      parameter.at[k] = narrow<Parameter>(this->p.at[k]);
    }
  };
};

/// Masters whose upper half is the bf16 parameter, see SplitMaster.
template <class Slots>
struct SplitMasters {
  Array<U16, Slots> upper, remainder;
  float updated[Slots::count];

  __device__ SplitMasters(U16* parameters, U16* remainders) : upper(parameters), remainder(remainders) {}
  __device__ void load(const Slots& slots) { upper.load(slots), remainder.load(slots); }
  __device__ void store(const Slots& slots) const { upper.store(slots), remainder.store(slots); }

  /// The master in slot k as loaded; `down` is 1 for a tie that was rounded down.
  [[nodiscard]] __device__ float get(unsigned k, U32 down) const {
    SplitMaster<ScalarLane> halves{upper.at[k], remainder.at[k]};
    halves.round_up(down);
    return float_of(halves.bits());
  }
  /// Before divide(), where one is not finite.
  __device__ void make_storable() {
#pragma unroll
    for (unsigned k = 0; k < Slots::count; ++k) updated[k] = float_of(storable(bits_of(updated[k])));
  }
  /// Divides the updated master in slot k; ties are rounded up.
  __device__ void divide(unsigned k) {
    put(k, SplitMaster<ScalarLane>(bits_of(updated[k])));
  }
  /// Ties are rounded to even. Returns 1 for one that is rounded down, else 0.
  __device__ U32 divide_to_even(unsigned k) {
    SplitMaster<ScalarLane> halves(bits_of(updated[k]));
    const U32 down = halves.odd_ties();
    halves.round_down(down);
    put(k, halves);
    return down;
  }

 private:
  __device__ void put(unsigned k, const SplitMaster<ScalarLane>& halves) {
    upper.at[k] = static_cast<U16>(halves.parameter);
    remainder.at[k] = static_cast<U16>(halves.remainder);
  }
};

/// m and v in fp32, remainder of the master. The sign bit of v belongs to the master.
struct SplitFormat {
  static constexpr StateFormat format = StateFormat::split;
  static constexpr unsigned group = group_of<float>, narrow_group = 1;
  using Lane = ScalarLane;
  using Scales = NoScales;

  template <class Slots>
  struct State {
    Array<float, Slots> m, v;
    SplitMasters<Slots> masters;

    __device__ State(const TileOperands& tile, const Run& run, const Scales&)
        : m(run.states_of<float>(tile, format)),
          v(m.from + run.length),
          masters(run.parameter_of<U16>(tile),
                  reinterpret_cast<U16*>(v.from - run.begin + run.length) + run.begin) {}
    __device__ void load(const Slots& slots) { masters.load(slots), m.load(slots), v.load(slots); }
    __device__ void store(const Slots& slots) const { masters.store(slots), m.store(slots), v.store(slots); }

    __device__ void update(const Slots&, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           float gradient, Largest<ScalarLane>& largest) {
      const U32 v_bits = bits_of(v.at[k]);
      float p = masters.get(k, v_bits >> 31), new_v = float_of(v_bits & ~sign_bit);
      adam_update<ScalarLane>(decay, coefficients, gradient, p, m.at[k], new_v);
      masters.updated[k] = p;
      v.at[k] = new_v;
      largest.add(p);
      largest.add_positive(new_v);
    }
    __device__ void divide() {
#pragma unroll
      for (unsigned k = 0; k < Slots::count; ++k) {
        v.at[k] = float_of((bits_of(v.at[k]) & ~sign_bit) | masters.divide_to_even(k) << 31);
      }
    }
  };
};

/// m and v in bf16, rounded stochastically, remainder of the master. The sign bit of v belongs to the master.
struct SplitBf16Format {
  static constexpr StateFormat format = StateFormat::split_bf16;
  static constexpr unsigned group = group_of<U16>, narrow_group = 1;
  using Lane = ScalarLane;
  using Scales = NoScales;

  template <class Slots>
  struct State {
    Array<U16, Slots> m, v;
    SplitMasters<Slots> masters;
    U32 seed, begin;

    __device__ State(const TileOperands& tile, const Run& run, const Scales&)
        : m(run.states_of<U16>(tile, format)),
          v(m.from + run.length),
          masters(run.parameter_of<U16>(tile), v.from + run.length),
          seed(run.seed_of(tile)),
          begin(run.begin) {}
    __device__ void load(const Slots& slots) { masters.load(slots), m.load(slots), v.load(slots); }
    __device__ void store(const Slots& slots) const { masters.store(slots), m.store(slots), v.store(slots); }

    __device__ void update(const Slots& slots, unsigned k, AdamDecay decay, const Coefficients& coefficients,
                           float gradient, Largest<ScalarLane>& largest) {
      const U32 v_word = v.at[k], random = random_of<ScalarLane>(seed, begin + slots.element(k));
      float p = masters.get(k, v_word >> 15), new_m = float_of(U32{m.at[k]} << 16),
            new_v = float_of((v_word & 0x7fffu) << 16);
      adam_update<ScalarLane>(decay, coefficients, gradient, p, new_m, new_v);
      masters.updated[k] = p;
      m.at[k] = static_cast<U16>(dithered(bits_of(new_m), random) >> 16);
      const U32 v_bits = dithered(bits_of(new_v), random);
      v.at[k] = static_cast<U16>(v_bits >> 16 & 0x7fffu);
      largest.add(p);
      largest.add_positive(float_of(v_bits));
    }
    __device__ void divide() {
#pragma unroll
      for (unsigned k = 0; k < Slots::count; ++k) {
        v.at[k] = static_cast<U16>(v.at[k] | masters.divide_to_even(k) << 15);
      }
    }
  };
};

}  // namespace penstock::kernels
