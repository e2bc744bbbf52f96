// A block's state as the loop uses it, one class per format: the addresses of its parts (see state_format.hpp),
// the loads and stores of elements, and the Lane that fits the format. Stored values are also added to `largest`,
// which detects non-finite ones. Included by adam_kernel.inl.

/// m and v in fp32.
class Fp32Moments {
 public:
  Fp32Moments(void* state, const Block& block) : m_(static_cast<float*>(state)), v_(m_ + block.count) {}

  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    return kernels::decayed<Lane>(operands, Lane::load(m_ + i), Lane::load(v_ + i));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    largest.add_positive(x.v);
    Lane::store(m_ + i, x.m);
    Lane::store(v_ + i, x.v);
  }

 private:
  float *m_, *v_;
};

/// m and v in bf16, rounded stochastically.
class Bf16Moments {
 public:
  Bf16Moments(void* state, const Block& block)
      : m_(static_cast<U16*>(state)), v_(m_ + block.count), seed_(block.seed) {}

  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    return kernels::decayed<Lane>(operands, Lane::value_of(Lane::upper(Lane::load_words(m_ + i))),
                                  Lane::value_of(Lane::upper(Lane::load_words(v_ + i))));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    const auto random = kernels::random_of<Lane>(seed_, i);
    const auto v = Lane::upper_words(kernels::dithered(Lane::bits_of(x.v), random));
    Lane::store_words(m_ + i, Lane::upper_words(kernels::dithered(Lane::bits_of(x.m), random)));
    Lane::store_words(v_ + i, v);
    largest.add_positive_upper_words(v);
  }

 private:
  U16 *m_, *v_;
  U32 seed_;
};

/// The moment of an optimizer that keeps one, in fp32.
class Fp32Moment {
 public:
  Fp32Moment(void* state, const Block&) : moment_(static_cast<float*>(state)) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_moment(unsigned long i) const {
    return Lane::load(moment_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moment(unsigned long i, typename Lane::F x) const {
    Lane::store(moment_ + i, x);
  }

 private:
  float* moment_;
};

/// Masters that are the parameters; 16-bit ones are rounded stochastically.
template <class Parameter>
class OwnMasters {
 public:
  using Lane = PairLane;

  explicit OwnMasters(const Block& block)
      : master_(static_cast<Parameter*>(block.parameter)), seed_(block.seed) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return Lane::load(master_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    const auto words =
        kernels::NarrowMaster<Parameter>::template rounded<Lane>(p, kernels::random_of<Lane>(seed_, i));
    Lane::store_words(&master_[i].bits, words);
    largest.add_positive_upper_words(kernels::finiteness_of<Parameter>(words));
  }

 private:
  Parameter* master_;
  U32 seed_;
};
template <>
class OwnMasters<float> {
 public:
  using Lane = WideLane;

  explicit OwnMasters(const Block& block) : master_(static_cast<float*>(block.parameter)) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return Lane::load(master_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    largest.add(p);
    Lane::store(master_ + i, p);
  }

 private:
  float* master_;
};

/// The moments alone: Fp32Moments, Bf16Moments or Fp32Moment.
template <class StoredMoments, class Parameter>
class MomentsState : public StoredMoments, public OwnMasters<Parameter> {
 public:
  explicit MomentsState(const Block& block)
      : StoredMoments(block.state, block), OwnMasters<Parameter>(block) {}
};

/// Master and moments, Fp32Moments or Fp32Moment, in fp32; the parameter is derived.
template <class StoredMoments, class Parameter>
class Fp32State : public StoredMoments {
 public:
  using Lane = WideLane;

  explicit Fp32State(const Block& block)
      : StoredMoments(static_cast<float*>(block.state) + block.count, block),
        master_(static_cast<float*>(block.state)),
        parameter_(static_cast<Parameter*>(block.parameter)),
        nontemporal_(block.nontemporal_parameter) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return Lane::load(master_ + i);
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

 private:
  float* master_;
  Parameter* parameter_;
  bool nontemporal_;
};

/// Masters whose upper half is the bf16 parameter. Ties are rounded up; see Ties.
class SplitMasters {
 public:
  SplitMasters(void* parameter, U16* remainder)
      : parameter_(static_cast<U16*>(parameter)), remainder_(remainder) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load(unsigned long i) const {
    const kernels::SplitMaster<Lane> halves{Lane::load_words(parameter_ + i),
                                            Lane::load_words(remainder_ + i)};
    return Lane::value_of(halves.bits());
  }
  /// Returns whether one is a tie.
  template <class Lane>
  [[gnu::always_inline]] inline bool store(unsigned long i, typename Lane::F p,
                                           kernels::Largest<Lane>& largest) const {
    const auto bits = Lane::bits_of(p);
    const kernels::SplitMaster<Lane> halves(bits);
    Lane::store_words(parameter_ + i, halves.parameter);
    Lane::store_words(remainder_ + i, halves.remainder);
    largest.add_upper_words(Lane::upper_words(bits));
    return halves.has_tie();
  }
  /// An upper bound of the finite magnitudes of masters [begin, begin + count).
  [[gnu::always_inline]] inline float largest(unsigned long begin, unsigned long count) const {
    return kernels::bound_of_master(largest_masked(parameter_ + begin, count, U16{0x7fff}));
  }
  /// Makes the parameters of masters that are NaNs NaNs too. Not in store(), because they are rare. `signs` are those
  /// of the ties that were rounded down.
  template <class Signs>
  [[gnu::noinline]] void keep_nans(unsigned long count, const Signs& signs) const {
    for (unsigned long i = 0; i < count; ++i) {
      kernels::SplitMaster<ScalarLane> halves{parameter_[i], remainder_[i]};
      halves.round_up(signs.template load<ScalarLane>(i));
      const U32 bits = halves.bits_before_rounding(), storable = kernels::storable(bits);
      if (storable == bits) continue;
      ScalarLane::store_words(parameter_ + i, ScalarLane::upper_words(storable));
      ScalarLane::store_words(remainder_ + i, ScalarLane::lower_words(storable));
    }
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    __builtin_prefetch(parameter_ + i, /*rw=*/1);
    __builtin_prefetch(remainder_ + i, /*rw=*/1);
  }

 private:
  U16 *parameter_, *remainder_;
};

/// Remainder of the master; m and v in fp32.
class SplitState : private Fp32Moments {
 public:
  using Lane = PairLane;

  explicit SplitState(const Block& block)
      : Fp32Moments(block.state, block),
        remainder_(reinterpret_cast<U16*>(static_cast<float*>(block.state) + 2 * block.count)),
        master_(block.parameter, remainder_),
        signs_(static_cast<float*>(block.state) + block.count),
        ties_(static_cast<U16*>(block.parameter), remainder_, signs_),
        count_(block.count) {}

  void finish(bool finite) const {
    if (!finite) master_.keep_nans(count_, signs_);
  }

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    ties_.round_up<Lane>(i);
    return Fp32Moments::load_decayed<Lane>(i, operands);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    if (master_.store<Lane>(i, p, largest)) [[unlikely]]
      ties_.round_to_even<Lane>(i);
  }
  using Fp32Moments::store_moments;

 private:
  U16* remainder_;
  SplitMasters master_;
  Fp32Signs signs_;
  Ties<Fp32Signs> ties_;
  unsigned long count_;
};

/// Remainder of the master; m and v in bf16, rounded stochastically.
class SplitBf16State : private Bf16Moments {
 public:
  using Lane = PairLane;

  explicit SplitBf16State(const Block& block)
      : Bf16Moments(block.state, block),
        remainder_(static_cast<U16*>(block.state) + 2 * block.count),
        master_(block.parameter, remainder_),
        signs_(static_cast<U16*>(block.state) + block.count),
        ties_(static_cast<U16*>(block.parameter), remainder_, signs_),
        count_(block.count) {}

  void finish(bool finite) const {
    if (!finite) master_.keep_nans(count_, signs_);
  }

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    ties_.round_up<Lane>(i);
    return Bf16Moments::load_decayed<Lane>(i, operands);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    if (master_.store<Lane>(i, p, largest)) [[unlikely]]
      ties_.round_to_even<Lane>(i);
  }
  using Bf16Moments::store_moments;

 private:
  U16* remainder_;
  SplitMasters master_;
  Bf16Signs signs_;
  Ties<Bf16Signs> ties_;
  unsigned long count_;
};
