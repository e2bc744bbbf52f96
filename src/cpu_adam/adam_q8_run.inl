// State format split_q8. Included by adam_kernel.inl.

/// A run of elements under one pair of scales: remainder of the master; m and v in eight bits, decoded by the
/// scales that they have and, once the largest are known, encoded by those that they get. Between the two
/// they wait in L1.
class Q8Run {
 public:
  Q8Run(const AdamBlock& block, unsigned long begin)
      : begin_(begin),
        count_(block.count - begin < kernels::q8_run ? block.count - begin : kernels::q8_run),
        m_codes_(static_cast<U8*>(block.state) + 2 * block.count),
        v_codes_(m_codes_ + block.count),
        m_base_(v_codes_ + block.count + begin / kernels::q8_run),
        v_base_(m_base_ + (block.count + kernels::q8_run - 1) / kernels::q8_run),
        master_(block.parameter, static_cast<U16*>(block.state)),
        seed_(block.seed),
        wide_(*m_base_, *v_base_),
        scalar_(*m_base_, *v_base_) {}

  [[nodiscard]] unsigned long end() const { return begin_ + count_; }

  template <class Lane>
  [[gnu::always_inline]] inline void load(unsigned long i, typename Lane::F& p, typename Lane::F& m,
                                          typename Lane::F& v) const {
    p = master_.load<Lane>(i);
    m = scales(Lane()).m.decoded(Lane::load_u8(m_codes_ + i));
    v = scales(Lane()).v.decoded(Lane::load_u8(v_codes_ + i));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p, typename Lane::F m,
                                           typename Lane::F v) {
    master_.store<Lane>(i, p);
    Lane::store(m_ + (i - begin_), m);
    Lane::store(v_ + (i - begin_), v);
  }
  [[gnu::always_inline]] inline void prefetch(unsigned long i) const {
    master_.prefetch(i);
    __builtin_prefetch(m_codes_ + i, /*rw=*/1);
    __builtin_prefetch(v_codes_ + i, /*rw=*/1);
  }

  /// What was stored, by new scales.
  [[gnu::always_inline]] inline void encode() {
    const unsigned long whole = count_ / WideLane::size * WideLane::size;
    *m_base_ = static_cast<U8>(kernels::q8_stored_base(largest(m_, whole), kernels::q8_m_exponent_max));
    *v_base_ = static_cast<U8>(kernels::q8_stored_base(largest(v_, whole), kernels::q8_v_exponent_max));
    encode(Scales<WideLane>(*m_base_, *v_base_), 0, whole);
    encode(Scales<kernels::ScalarLane>(*m_base_, *v_base_), whole, count_);
  }

 private:
  /// Of the magnitudes, as fp32 bits.
  [[gnu::always_inline]] inline U32 largest(const float* values, unsigned long whole) const {
    WideLane::U wide(0u);
    for (unsigned long i = 0; i < whole; i += WideLane::size) {
      wide = WideLane::larger(wide, WideLane::bits_of(WideLane::load(values + i)) & WideLane::U(0x7fffffffu));
    }
    U32 largest = WideLane::largest(wide);
    for (unsigned long i = whole; i < count_; ++i) {
      largest = kernels::ScalarLane::larger(largest, kernels::bits_of(values[i]) & 0x7fffffffu);
    }
    return largest;
  }

  template <class Lane>
  struct Scales {
    kernels::Q8M<Lane> m;
    kernels::Q8V<Lane> v;
    Scales(U32 m_base, U32 v_base) : m(m_base), v(v_base) {}
  };
  [[gnu::always_inline]] inline const Scales<WideLane>& scales(WideLane) const { return wide_; }
  [[gnu::always_inline]] inline const Scales<kernels::ScalarLane>& scales(kernels::ScalarLane) const {
    return scalar_;
  }

  template <class Lane>
  [[gnu::always_inline]] inline void encode(const Scales<Lane>& to, unsigned long begin,
                                            unsigned long end) const {
    for (unsigned long i = begin; i < end; i += Lane::size) {
      const auto random = kernels::random_of<Lane>(seed_, begin_ + i);
      Lane::store_u8(m_codes_ + begin_ + i, to.m.encoded(Lane::load(m_ + i), kernels::low_half(random)));
      Lane::store_u8(v_codes_ + begin_ + i, to.v.encoded(Lane::load(v_ + i), kernels::high_half(random)));
    }
  }

  const unsigned long begin_, count_;
  U8 *const m_codes_, *const v_codes_, *const m_base_, *const v_base_;
  const SplitMaster master_;
  const U32 seed_;
  const Scales<WideLane> wide_;
  const Scales<kernels::ScalarLane> scalar_;
  alignas(64) float m_[kernels::q8_run];
  alignas(64) float v_[kernels::q8_run];
};
