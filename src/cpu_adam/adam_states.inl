// What a block's state looks like to the Adam loop, a class for each format: where it stands (see
// state_format.hpp), how an element is loaded and stored, and the Lane to go by. Included by adam_kernel.inl.

template <class Lane>
struct Moments {
  typename Lane::F m, v;
};

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
        past_caches_(block.parameter_past_caches) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return Lane::load(master_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<Lane> load_moments(unsigned long i) const {
    return {Lane::load(m_ + i), Lane::load(v_ + i)};
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p) const {
    Lane::store(master_ + i, p);
    if (past_caches_) {
      Lane::store_past_caches(parameter_ + i, p);
    } else {
      Lane::store(parameter_ + i, p);
    }
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<Lane>& x) const {
    Lane::store(m_ + i, x.m);
    Lane::store(v_ + i, x.v);
  }

 private:
  float *master_, *m_, *v_;
  Parameter* parameter_;
  bool past_caches_;
};

/// A master whose upper half is the bf16 parameter.
class SplitMaster {
 public:
  SplitMaster(void* parameter, U16* remainder)
      : upper_(static_cast<U16*>(parameter)), remainder_(remainder) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load(unsigned long i) const {
    return Lane::value_of(
        kernels::joined_master(Lane::load_upper(upper_ + i), Lane::load_lower_signed(remainder_ + i)));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p) const {
    const auto bits = Lane::bits_of(p);
    Lane::store_upper(upper_ + i, kernels::master_upper(bits));
    Lane::store_lower(remainder_ + i, bits);
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    __builtin_prefetch(upper_ + i, /*rw=*/1);
    __builtin_prefetch(remainder_ + i, /*rw=*/1);
  }

 private:
  U16 *upper_, *remainder_;
};

/// Remainder of the master; m and v in fp32.
class SplitState {
 public:
  using Lane = PairLane;

  explicit SplitState(const AdamBlock& block)
      : m_(static_cast<float*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, reinterpret_cast<U16*>(v_ + block.count)) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<Lane> load_moments(unsigned long i) const {
    return {Lane::load(m_ + i), Lane::load(v_ + i)};
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p) const {
    master_.store<Lane>(i, p);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<Lane>& x) const {
    Lane::store(m_ + i, x.m);
    Lane::store(v_ + i, x.v);
  }

 private:
  float *m_, *v_;
  SplitMaster master_;
};

/// Remainder of the master; m and v in bf16, rounded stochastically.
class SplitBf16State {
 public:
  using Lane = PairLane;

  explicit SplitBf16State(const AdamBlock& block)
      : m_(static_cast<U16*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, v_ + block.count),
        seed_(block.seed) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline Moments<Lane> load_moments(unsigned long i) const {
    return {Lane::value_of(Lane::load_upper(m_ + i)), Lane::value_of(Lane::load_upper(v_ + i))};
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p) const {
    master_.store<Lane>(i, p);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<Lane>& x) const {
    const auto random = kernels::random_of<Lane>(seed_, i);
    Lane::store_upper(m_ + i, kernels::dithered_m<16>(Lane::bits_of(x.m), random));
    Lane::store_upper(v_ + i, kernels::dithered_v<16>(Lane::bits_of(x.v), random));
  }

 private:
  U16 *m_, *v_;
  SplitMaster master_;
  U32 seed_;
};
