// State format split_q8. Included by adam_kernel.inl.

/// Where the new moments of a run wait, in L1, until the largest of them are known. In a lane's own order.
struct Q8Buffer {
  alignas(64) float m[kernels::q8_run];
  alignas(64) float v[kernels::q8_run];
};

template <class Lane>
struct Q8Scales {
  kernels::Q8M<Lane> m;
  kernels::Q8V<Lane> v;
};

/// A run of elements under one pair of scales: remainder of the master; m and v in eight bits, decoded by the
/// scales that they have, and encoded by those that they get.
class Q8Run {
 public:
  using Lane = PairLane;

  Q8Run(const AdamBlock& block, unsigned long begin, Q8Buffer& buffer)
      : begin_(begin),
        end_(block.count - begin < kernels::q8_run ? block.count : begin + kernels::q8_run),
        m_codes_(static_cast<U8*>(block.state) + 2 * block.count),
        v_codes_(m_codes_ + block.count),
        m_base_(v_codes_ + block.count + begin / kernels::q8_run),
        v_base_(m_base_ + (block.count + kernels::q8_run - 1) / kernels::q8_run),
        m_(buffer.m),
        v_(buffer.v),
        master_(block.parameter, static_cast<U16*>(block.state)),
        seed_(block.seed),
        old_scales_(scales<Lane>()) {}

  [[nodiscard]] unsigned long begin() const { return begin_; }
  [[nodiscard]] unsigned long end() const { return end_; }

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return master_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p) const {
    master_.store<Lane>(i, p);
  }
  [[gnu::always_inline]] inline void prefetch_master(unsigned long i) const { master_.prefetch(i); }

  template <class Lane>
  [[gnu::always_inline]] inline Moments<Lane> load_moments(unsigned long i) const {
    const auto& from = old_scales<Lane>();
    return {from.m.decoded(Lane::load_bytes_signed(m_codes_ + i)),
            from.v.decoded(Lane::load_bytes(v_codes_ + i))};
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<Lane>& x) const {
    Lane::store_in_order(m_ + (i - begin_), x.m);
    Lane::store_in_order(v_ + (i - begin_), x.v);
  }
  [[gnu::always_inline]] inline void prefetch_moments(unsigned long i) const {
    __builtin_prefetch(m_codes_ + i, /*rw=*/1);
    __builtin_prefetch(v_codes_ + i, /*rw=*/1);
  }

  /// Makes the scales for moments up to these, as fp32 bits.
  [[gnu::always_inline]] inline void rescale(U32 largest_m, U32 largest_v) const {
    *m_base_ = static_cast<U8>(kernels::q8_stored_base(largest_m, kernels::q8_m_exponent_max));
    *v_base_ = static_cast<U8>(kernels::q8_stored_base(largest_v, kernels::q8_v_exponent_max));
  }
  template <class Lane>
  [[gnu::always_inline]] inline Q8Scales<Lane> scales() const {
    return {kernels::Q8M<Lane>(*m_base_), kernels::Q8V<Lane>(*v_base_)};
  }
  /// Encodes the moments that wait, and returns them.
  template <class Lane>
  [[gnu::always_inline]] inline Moments<Lane> encode(unsigned long i, const Q8Scales<Lane>& to) const {
    const Moments<Lane> x = {Lane::load_in_order(m_ + (i - begin_)), Lane::load_in_order(v_ + (i - begin_))};
    const auto random = kernels::random_of<Lane>(seed_, i);
    Lane::store_bytes(m_codes_ + i, to.m.encoded(x.m, random));
    Lane::store_bytes(v_codes_ + i, to.v.encoded(x.v, random));
    return x;
  }

 private:
  template <class SomeLane>
  [[gnu::always_inline]] inline auto old_scales() const {
    if constexpr (SomeLane::size == Lane::size) {
      return old_scales_;
    } else {
      return scales<SomeLane>();
    }
  }

  unsigned long begin_, end_;
  U8 *m_codes_, *v_codes_, *m_base_, *v_base_;
  float *m_, *v_;
  SplitMaster master_;
  U32 seed_;
  Q8Scales<Lane> old_scales_;
};
