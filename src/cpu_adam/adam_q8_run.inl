// State format split_q8. Included by adam_kernel.inl.

/// A run of elements under one pair of scales: remainder of the master; m and v in eight bits, decoded by the scales
/// that they have and, once all are known, encoded by those that they get. Between the two they wait in L1.
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
        wide_m_(*m_base_),
        wide_v_(*v_base_),
        scalar_m_(*m_base_),
        scalar_v_(*v_base_) {}

  [[nodiscard]] unsigned long end() const { return begin_ + count_; }

  template <class Lane>
  [[gnu::always_inline]] inline void load(unsigned long i, typename Lane::F& p, typename Lane::F& m,
                                          typename Lane::F& v) const {
    using U = typename Lane::U;
    const U code = Lane::load_u8(m_codes_ + i);
    const U sign = (code >> 7) << 31;
    p = master_.load<Lane>(i);
    m = Lane::value_of(Lane::bits_of(scale_m(Lane()).decoded(code & U(0x7fu))) | sign);
    v = scale_v(Lane()).decoded(Lane::load_u8(v_codes_ + i));
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::F p, typename Lane::F m,
                                           typename Lane::F v) const {
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
    WideLane::U m_most(0u), v_most(0u);
    for (unsigned long i = 0; i < whole; i += WideLane::size) {
      m_most = WideLane::larger(m_most, WideLane::bits_of(WideLane::load(m_ + i)) & WideLane::U(0x7fffffffu));
      v_most = WideLane::larger(v_most, WideLane::bits_of(WideLane::load(v_ + i)) & WideLane::U(0x7fffffffu));
    }
    U32 m_max = WideLane::largest(m_most), v_max = WideLane::largest(v_most);
    for (unsigned long i = whole; i < count_; ++i) {
      const U32 m = kernels::bits_of(m_[i]) & 0x7fffffffu, v = kernels::bits_of(v_[i]) & 0x7fffffffu;
      m_max = m > m_max ? m : m_max;
      v_max = v > v_max ? v : v_max;
    }
    const U32 m_base = kernels::q8_stored_base(m_max, kernels::q8_m_exponent_max);
    const U32 v_base = kernels::q8_stored_base(v_max, kernels::q8_v_exponent_max);
    *m_base_ = static_cast<U8>(m_base);
    *v_base_ = static_cast<U8>(v_base);
    const kernels::Q8Scale<WideLane> wide_m(m_base), wide_v(v_base);
    const kernels::Q8Scale<kernels::ScalarLane> scalar_m(m_base), scalar_v(v_base);
    for (unsigned long i = 0; i < whole; i += WideLane::size) encode_at<WideLane>(i, wide_m, wide_v);
    for (unsigned long i = whole; i < count_; ++i) encode_at<kernels::ScalarLane>(i, scalar_m, scalar_v);
  }

 private:
  [[gnu::always_inline]] inline const auto& scale_m(WideLane) const { return wide_m_; }
  [[gnu::always_inline]] inline const auto& scale_v(WideLane) const { return wide_v_; }
  [[gnu::always_inline]] inline const auto& scale_m(kernels::ScalarLane) const { return scalar_m_; }
  [[gnu::always_inline]] inline const auto& scale_v(kernels::ScalarLane) const { return scalar_v_; }

  template <class Lane>
  [[gnu::always_inline]] inline void encode_at(unsigned long i, const kernels::Q8Scale<Lane>& scale_m,
                                               const kernels::Q8Scale<Lane>& scale_v) const {
    using U = typename Lane::U;
    const U random = kernels::hashed(U(seed_ + static_cast<U32>(begin_ + i)) + Lane::iota());
    const U m = Lane::bits_of(Lane::load(m_ + i)), v = Lane::bits_of(Lane::load(v_ + i)) & U(0x7fffffffu);
    const U m_code = scale_m.encoded(m & U(0x7fffffffu), random & U(0xffffu), U(0x7fu));
    // A second moment that is not zero stays so: the first would be divided by epsilon alone.
    const U v_code = Lane::larger(scale_v.encoded(v, random >> 16, U(0xffu)), Lane::if_less(U(0u), v, U(1u), U(0u)));
    Lane::store_u8(m_codes_ + (begin_ + i), m_code | ((m >> 31) << 7));
    Lane::store_u8(v_codes_ + (begin_ + i), v_code);
  }

  const unsigned long begin_, count_;
  U8 *const m_codes_, *const v_codes_, *const m_base_, *const v_base_;
  const SplitMaster master_;
  const U32 seed_;
  const kernels::Q8Scale<WideLane> wide_m_, wide_v_;
  const kernels::Q8Scale<kernels::ScalarLane> scalar_m_, scalar_v_;
  alignas(64) mutable float m_[kernels::q8_run];
  alignas(64) mutable float v_[kernels::q8_run];
};
