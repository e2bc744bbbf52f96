// A block's state as the Adam loop uses it, one class per format: the addresses of its parts (see state_format.hpp),
// the loads and stores of elements, and the Lane that fits the format. Stored values are also added to `largest`,
// which detects non-finite ones. Included by adam_kernel.inl.

/// Master, m and v in fp32; the parameter is derived.
template <class Parameter>
class Fp32State {
 public:
  using Lane = WideLane;

  explicit Fp32State(const AdamBlock& block)
      : master_(static_cast<float*>(block.state)),
        m_(master_ + block.count),
        v_(m_ + block.count),
        parameter_(static_cast<Parameter*>(block.parameter)),
        nontemporal_(block.nontemporal_parameter) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return Lane::load(master_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    return kernels::decayed<Lane>(operands, Lane::load(m_ + i), Lane::load(v_ + i));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    largest.add(p);
    Lane::store(master_ + i, p);
    if (nontemporal_) {
      Lane::store_nontemporal(parameter_ + i, p);
    } else {
      Lane::store(parameter_ + i, p);
    }
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    largest.add_positive(x.v);
    Lane::store(m_ + i, x.m);
    Lane::store(v_ + i, x.v);
  }

 private:
  float *master_, *m_, *v_;
  Parameter* parameter_;
  bool nontemporal_;
};

/// Second moments in fp32. Their sign bits say which masters are ties that were rounded down, see SplitMaster.
class Fp32V {
 public:
  explicit Fp32V(float* v) : v_(v) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load(unsigned long i) const {
    return Lane::value_of(bits<Lane>(i) & typename Lane::Mask(~kernels::sign_bit));
  }
  /// Keeps the sign bits: the loop stores v before it loads the master.
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F v) const {
    const auto signs = bits<Lane>(i) & typename Lane::Mask(kernels::sign_bit);
    Lane::store(v_ + i, Lane::value_of(Lane::bits_of(v) | signs));
  }
  /// The sign bits as the lowest bits of words.
  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load_signs(unsigned long i) const {
    return Lane::upper_words(bits<Lane>(i)) >> 15;
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_signs(unsigned long i, typename Lane::W signs) const {
    const auto upper = Lane::upper_words(Lane::bits_of(load<Lane>(i))) + (signs << 15);
    Lane::store(v_ + i, Lane::value_of(Lane::joined(upper, Lane::lower_words(bits<Lane>(i)))));
  }

 private:
  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::U bits(unsigned long i) const {
    return Lane::bits_of(Lane::load(v_ + i));
  }

  float* v_;
};

/// The same in bf16, as the upper halves of fp32 numbers.
class Bf16V {
 public:
  explicit Bf16V(U16* v) : v_(v) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load(unsigned long i) const {
    return Lane::load_words(v_ + i) & typename Lane::W(U16{0x7fff});
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::W v) const {
    const auto signs = Lane::load_words(v_ + i) & typename Lane::W(U16{0x8000});
    Lane::store_words(v_ + i, v | signs);
  }
  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load_signs(unsigned long i) const {
    return Lane::load_words(v_ + i) >> 15;
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_signs(unsigned long i, typename Lane::W signs) const {
    Lane::store_words(v_ + i, load<Lane>(i) + (signs << 15));
  }

 private:
  U16* v_;
};

/// Second moments without sign bits: ties are rounded up.
struct NoSigns {};

/// Masters whose upper half is the bf16 parameter. V holds the directions in which ties are rounded. Ties are rare: other
/// masters are loaded and stored without access to V.
template <class V>
class SplitMasters {
 public:
  SplitMasters(void* parameter, U16* remainder, V v)
      : parameter_(static_cast<U16*>(parameter)), remainder_(remainder), v_(v) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load(unsigned long i) const {
    kernels::SplitMaster<Lane> halves{Lane::load_words(parameter_ + i), old_remainder<Lane>(i)};
    if constexpr (rounds_to_even) {
      if (halves.has_tie()) [[unlikely]] {
        halves.round_up(v_.template load_signs<Lane>(i));
      }
    }
    return Lane::value_of(halves.bits());
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p,
                                           kernels::Largest<Lane>& largest) const {
    const auto bits = Lane::bits_of(p);
    auto halves = kernels::SplitMaster<Lane>::rounded_up(bits);
    if constexpr (rounds_to_even) {
      const bool had_tie = Lane::any_equal(old_remainder<Lane>(i), halves.tie);
      if (had_tie | halves.has_tie()) [[unlikely]] {
        const auto down = halves.odd_ties();
        halves.round_down(down);
        v_.template store_signs<Lane>(i, down);
      }
    }
    Lane::store_words(parameter_ + i, halves.parameter);
    Lane::store_words(remainder_ + i, halves.remainder);
    largest.add_upper_words(Lane::upper_words(bits));
  }
  /// An upper bound of the finite magnitudes of masters [begin, begin + count).
  [[gnu::always_inline]] inline float largest(unsigned long begin, unsigned long count) const {
    const U32 bits = (largest_masked(parameter_ + begin, count, U16{0x7fff}) << 16) + 0x7fffu;
    return kernels::float_of(bits < kernels::not_finite ? bits : kernels::not_finite - 1);
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    __builtin_prefetch(parameter_ + i, /*rw=*/1);
    __builtin_prefetch(remainder_ + i, /*rw=*/1);
  }

 private:
  static constexpr bool rounds_to_even = !__is_same(V, NoSigns);

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W old_remainder(unsigned long i) const {
    return Lane::load_words(remainder_ + i);
  }

  U16 *parameter_, *remainder_;
  [[no_unique_address]] V v_;
};

/// Remainder of the master; m and v in fp32.
class SplitState {
 public:
  using Lane = PairLane;

  explicit SplitState(const AdamBlock& block)
      : m_(static_cast<float*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, reinterpret_cast<U16*>(m_ + 2 * block.count), v_) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    return kernels::decayed<Lane>(operands, Lane::load(m_ + i), v_.load<Lane>(i));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    master_.store<Lane>(i, p, largest);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    largest.add_positive(x.v);
    v_.store<Lane>(i, x.v);
    Lane::store(m_ + i, x.m);
  }

 private:
  float* m_;
  Fp32V v_;
  SplitMasters<Fp32V> master_;
};

/// Remainder of the master; m and v in bf16, rounded stochastically.
class SplitBf16State {
 public:
  using Lane = PairLane;

  explicit SplitBf16State(const AdamBlock& block)
      : m_(static_cast<U16*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, m_ + 2 * block.count, v_),
        seed_(block.seed) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    return kernels::decayed<Lane>(operands, Lane::value_of(Lane::upper(Lane::load_words(m_ + i))),
                                  Lane::value_of(Lane::upper(v_.load<Lane>(i))));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    master_.store<Lane>(i, p, largest);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    const auto random = kernels::random_of<Lane>(seed_, i);
    const auto v = Lane::upper_words(kernels::dithered<16>(Lane::bits_of(x.v), random));
    largest.add_positive_upper_words(v);
    v_.store<Lane>(i, v);
    Lane::store_words(m_ + i, Lane::upper_words(kernels::dithered<16>(Lane::bits_of(x.m), random)));
  }

 private:
  U16* m_;
  Bf16V v_;
  SplitMasters<Bf16V> master_;
  U32 seed_;
};
