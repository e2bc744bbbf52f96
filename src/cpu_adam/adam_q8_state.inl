// State format split_q8. Included by adam_kernel.inl.

/// The scales of a run's moments: Q8Bases as stored, Q8Scales as operands.
struct Q8Bases {
  U8 m, v;
};
template <class Lane>
struct Q8Scales {
  kernels::Q8M<Lane> m;
  kernels::Q8V<Lane> v;

  [[gnu::always_inline]] inline explicit Q8Scales(Q8Bases bases) : m(bases.m), v(bases.v) {}
};

/// Remainder of the master; m in nine bits and v in eleven. They are decoded with the run's old scales and encoded with
/// its new ones, which begin_run() sets.
template <class Gradient>
class Q8State {
 public:
  using Lane = PairLane;

  explicit Q8State(const Block& block)
      : block_(block),
        words_(static_cast<U16*>(block.state) + block.count),
        nibbles_(reinterpret_cast<U8*>(words_ + block.count)),
        m_bases_(nibbles_ + (block.count + 1) / 2),
        v_bases_(m_bases_ + (block.count + kernels::q8_run - 1) / kernels::q8_run),
        masters_(block.parameter, static_cast<U16*>(block.state)) {
    bound_run(0);
  }

  /// If element i is the first of a run, sets the run's new scales from the upper bound of its new moments. The bound
  /// was computed one run earlier, to hide its latency; the bound of the next run is computed here. Returns the end of
  /// the run of element i.
  [[gnu::always_inline]] inline unsigned long begin_run(unsigned long i) {
    const unsigned long run = i / kernels::q8_run, end = (run + 1) * kernels::q8_run;
    if (i % kernels::q8_run > 0) return end;
    old_bases_ = {m_bases_[run], v_bases_[run]};
    bases_ = bound_;
    m_bases_[run] = bases_.m;
    v_bases_[run] = bases_.v;
    old_scales_ = Q8Scales<Lane>(old_bases_);
    scales_ = Q8Scales<Lane>(bases_);
    if (end < block_.count) bound_run(end);
    return end;
  }

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::F load_master(unsigned long i) const {
    return masters_.load<Lane>(i);
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_master(unsigned long i, typename Lane::F p,
                                                  kernels::Largest<Lane>& largest) const {
    masters_.store<Lane>(i, p, largest);
  }
  [[gnu::always_inline]] inline void prefetch_master(unsigned long i) const { masters_.prefetch(i); }

  template <class Lane>
  [[gnu::always_inline]] inline Moments<typename Lane::F> load_decayed(
      unsigned long i, const kernels::AdamOperands<Lane>& operands) const {
    const auto& from = scales_of<Lane>(old_scales_, old_bases_);
    const auto word = Lane::load_words(words_ + i);
    return {from.m.decoded(word, operands.beta1),
            from.v.decoded(from.v.joined(word, Lane::load_nibbles(nibbles_, i))) * operands.beta2};
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store_moments(unsigned long i, const Moments<typename Lane::F>& x,
                                                   kernels::Largest<Lane>& largest) const {
    const auto& to = scales_of<Lane>(scales_, bases_);
    const auto random = kernels::random_of<Lane>(block_.seed, i);
    const auto v = to.v.rounded(x.v, random);
    largest.add_positive_upper_words(v);
    const auto code = to.v.encoded(v, random);
    Lane::store_words(words_ + i, to.m.encoded(x.m, random) | to.v.word_part(code));
    Lane::store_nibbles(nibbles_, i, to.v.nibble_part(code));
  }
  void finish(bool finite) {
    if (!finite) masters_.keep_nans(block_.count, NoSigns());
  }
  [[gnu::always_inline]] inline void prefetch_moments(unsigned long i) const {
    __builtin_prefetch(words_ + i, /*rw=*/1);
    __builtin_prefetch(nibbles_ + i / 2, /*rw=*/1);
  }

 private:
  /// Computes the upper bound of the new moments of the run that begins at `begin`, see kernels/q8_bound.hpp. Not
  /// inlined because the compiler then generates a better loop.
  [[gnu::noinline]] void bound_run(unsigned long begin) {
    const unsigned long left = block_.count - begin, count = left < kernels::q8_run ? left : kernels::q8_run;
    const unsigned long run = begin / kernels::q8_run;
    const Q8Scales<ScalarLane> scales({m_bases_[run], v_bases_[run]});
    const float g = largest_magnitude(static_cast<const Gradient*>(block_.gradient) + begin, count);
    const float m = scales.m.decoded(largest_masked(words_ + begin, count, U16{0x7f80}), 1.0f);
    const float v = bound_v(scales.v, begin, count);
    kernels::Largest<ScalarLane> largest_m, largest_v;
    piece_ = for_pieces(
        block_, piece_, begin, begin + count,
        [&](const kernels::AdamCoefficients& coefficients, unsigned long, unsigned long)
            __attribute__((always_inline)) {
              const kernels::AdamOperands<ScalarLane> operands(coefficients);
              const bool l2 = coefficients.decay_mode == kernels::AdamDecay::l2;
              const auto most = kernels::q8_bounds(coefficients.decay_mode, operands, g,
                                                   l2 ? masters_.largest(begin, count) : 0.0f, {m, v});
              largest_m.add(most.m);
              largest_v.add(most.v);
            });
    bound_ = {static_cast<U8>(kernels::Q8M<ScalarLane>::Code::stored_base(largest_m.most)),
              static_cast<U8>(kernels::Q8V<ScalarLane>::Code::stored_base(largest_v.most))};
  }

  [[gnu::always_inline]] inline float bound_v(const kernels::Q8V<ScalarLane>& scale, unsigned long begin,
                                              unsigned long count) const {
    using V = kernels::Q8V<ScalarLane>;
    U32 code = V::joined(largest_masked(words_ + begin, count, U16{0x7f}), U32{0xf});
    if (code < V::Code::first_fine) [[unlikely]]
      code = largest_code_of_v(begin, count);
    return kernels::q8_bound_of_v(scale, code);
  }
  [[gnu::noinline, gnu::cold]] U32 largest_code_of_v(unsigned long begin, unsigned long count) const {
    using V = kernels::Q8V<ScalarLane>;
    U32 most = 0;
    for (unsigned long i = begin; i < begin + count; ++i) {
      most = ScalarLane::larger(most, V::joined(words_[i], ScalarLane::load_nibbles(nibbles_, i)));
    }
    return most;
  }

  /// The scales as operands of SomeLane.
  template <class SomeLane>
  [[gnu::always_inline]] static inline decltype(auto) scales_of(const Q8Scales<Lane>& scales, Q8Bases bases) {
    if constexpr (SomeLane::size == Lane::size) {
      return (scales);
    } else {
      return Q8Scales<SomeLane>(bases);
    }
  }

  const Block& block_;
  U16* words_;
  U8 *nibbles_, *m_bases_, *v_bases_;
  SplitMasters masters_;
  const Piece* piece_ = block_.pieces;       // the last piece that bound_run() used
  Q8Bases old_bases_{}, bases_{}, bound_{};  // old and new of this run; new of the next run
  Q8Scales<Lane> old_scales_{old_bases_}, scales_{bases_};
};
