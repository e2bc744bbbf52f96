// What a block's state looks like to the Adam loop, a class for each format: where it stands (see
// state_format.hpp), how an element is loaded and stored. Included by adam_kernel.inl.

using kernels::U16;
using kernels::U32;
using kernels::U8;

/// Master, m and v in fp32; the parameter is derived.
template <class Parameter>
class Fp32State {
 public:
  explicit Fp32State(const AdamBlock& block)
      : master_(static_cast<float*>(block.state)),
        m_(master_ + block.count),
        v_(m_ + block.count),
        parameter_(static_cast<Parameter*>(block.parameter)) {}

  template <class Lane>
  [[gnu::always_inline]] inline void load(unsigned long i, typename Lane::F& p, typename Lane::F& m,
                                          typename Lane::F& v) const {
    p = Lane::load(master_ + i);
    m = Lane::load(m_ + i);
    v = Lane::load(v_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p, typename Lane::F m,
                                           typename Lane::F v) const {
    Lane::store(master_ + i, p);
    Lane::store(m_ + i, m);
    Lane::store(v_ + i, v);
    Lane::store(parameter_ + i, p);
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    __builtin_prefetch(master_ + i, /*rw=*/1);
    __builtin_prefetch(m_ + i, /*rw=*/1);
    __builtin_prefetch(v_ + i, /*rw=*/1);
    __builtin_prefetch(parameter_ + i, /*rw=*/1);
  }

 private:
  float *master_, *m_, *v_;
  Parameter* parameter_;
};

/// A master whose upper half is the bf16 parameter.
class SplitMaster {
 public:
  SplitMaster(void* parameter, U16* remainder)
      : upper_(static_cast<U16*>(parameter)), remainder_(remainder) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load(unsigned long i) const {
    return Lane::value_of(kernels::joined_master(Lane::load_u16(upper_ + i), Lane::load_u16(remainder_ + i)));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p) const {
    const auto bits = Lane::bits_of(p);
    const auto upper = kernels::master_upper(bits);
    Lane::store_u16(upper_ + i, upper);
    Lane::store_u16(remainder_ + i, kernels::master_remainder(bits, upper));
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
  explicit SplitState(const AdamBlock& block)
      : m_(static_cast<float*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, reinterpret_cast<U16*>(v_ + block.count)) {}

  template <class Lane>
  [[gnu::always_inline]] inline void load(unsigned long i, typename Lane::F& p, typename Lane::F& m,
                                          typename Lane::F& v) const {
    p = master_.load<Lane>(i);
    m = Lane::load(m_ + i);
    v = Lane::load(v_ + i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p, typename Lane::F m,
                                           typename Lane::F v) const {
    master_.store<Lane>(i, p);
    Lane::store(m_ + i, m);
    Lane::store(v_ + i, v);
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    master_.prefetch(i);
    __builtin_prefetch(m_ + i, /*rw=*/1);
    __builtin_prefetch(v_ + i, /*rw=*/1);
  }

 private:
  float *m_, *v_;
  SplitMaster master_;
};

/// Remainder of the master; m and v in bf16, rounded stochastically.
class SplitBf16State {
 public:
  explicit SplitBf16State(const AdamBlock& block)
      : m_(static_cast<U16*>(block.state)),
        v_(m_ + block.count),
        master_(block.parameter, v_ + block.count),
        seed_(block.seed) {}

  template <class Lane>
  [[gnu::always_inline]] inline void load(unsigned long i, typename Lane::F& p, typename Lane::F& m,
                                          typename Lane::F& v) const {
    p = master_.load<Lane>(i);
    m = Lane::value_of(Lane::load_u16(m_ + i) << 16);
    v = Lane::value_of(Lane::load_u16(v_ + i) << 16);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p, typename Lane::F m,
                                           typename Lane::F v) const {
    const auto random = kernels::random_of<Lane>(seed_, i);
    master_.store<Lane>(i, p);
    Lane::store_u16(m_ + i, kernels::bf16_stochastic(Lane::bits_of(m), kernels::low_half(random)));
    Lane::store_u16(v_ + i, kernels::bf16_stochastic(Lane::bits_of(v), kernels::high_half(random)));
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    master_.prefetch(i);
    __builtin_prefetch(m_ + i, /*rw=*/1);
    __builtin_prefetch(v_ + i, /*rw=*/1);
  }

 private:
  U16 *m_, *v_;
  SplitMaster master_;
  U32 seed_;
};
