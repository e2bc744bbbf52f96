// Ties of masters in the formats that round them to even, see kernels::SplitMaster. Included by adam_kernel.inl.

/// The sign bits of second moments in fp32, as the lowest bits of words.
class Fp32Signs {
 public:
  explicit Fp32Signs(float* v) : v_(v) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load(unsigned long i) const {
    return Lane::upper_words(Lane::bits_of(Lane::load(v_ + i))) >> 15;
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::W signs) const {
    const auto bits = Lane::bits_of(Lane::load(v_ + i));
    const auto upper = (Lane::upper_words(bits) & typename Lane::W(U16{0x7fff})) + (signs << 15);
    Lane::store(v_ + i, Lane::value_of(Lane::joined(upper, Lane::lower_words(bits))));
  }

 private:
  float* v_;
};

/// The same of second moments in bf16.
class Bf16Signs {
 public:
  explicit Bf16Signs(U16* v) : v_(v) {}

  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load(unsigned long i) const {
    return Lane::load_words(v_ + i) >> 15;
  }
  template <class Lane>
  [[gnu::always_inline]] inline void store(unsigned long i, typename Lane::W signs) const {
    Lane::store_words(v_ + i, (Lane::load_words(v_ + i) & typename Lane::W(U16{0x7fff})) + (signs << 15));
  }

 private:
  U16* v_;
};

/// Of a format that rounds all ties up.
struct NoSigns {
  template <class Lane>
  [[gnu::always_inline]] inline typename Lane::W load(unsigned long) const {
    return typename Lane::W(U16{0});
  }
};

/// The ties of a block. The loop rounds ties up and expects a v without signs. This class brings ties into that form
/// before the loop loads them, and rounds them to even after it has stored them. Ties are rare, so that the loop rarely
/// does more than compare remainders; the functions for the rest are not inlined, so that the loop keeps its registers.
template <class Signs>
class Ties {
 public:
  Ties(U16* parameter, U16* remainder, Signs signs)
      : parameter_(parameter), remainder_(remainder), signs_(signs) {}

  /// Before the loop loads v or the master of lane i for the first time.
  template <class Lane>
  [[gnu::always_inline]] inline void round_up(unsigned long i) const {
    if (halves<Lane>(i).has_tie()) [[unlikely]] {
      round_ties_up<Lane>(i);
    }
  }
  /// After the loop has stored the master of lane i, if it holds a tie.
  template <class Lane>
  [[gnu::noinline, gnu::cold]] void round_to_even(unsigned long i) const {
    auto rounded = halves<Lane>(i);
    const auto down = rounded.odd_ties();
    rounded.round_down(down);
    Lane::store_words(parameter_ + i, rounded.parameter);
    signs_.template store<Lane>(i, down);
  }

 private:
  template <class Lane>
  [[gnu::noinline, gnu::cold]] void round_ties_up(unsigned long i) const {
    auto rounded = halves<Lane>(i);
    rounded.round_up(signs_.template load<Lane>(i));
    Lane::store_words(parameter_ + i, rounded.parameter);
    signs_.template store<Lane>(i, typename Lane::W(U16{0}));
  }
  template <class Lane>
  [[gnu::always_inline]] inline kernels::SplitMaster<Lane> halves(unsigned long i) const {
    return {Lane::load_words(parameter_ + i), Lane::load_words(remainder_ + i)};
  }

  U16 *parameter_, *remainder_;
  Signs signs_;
};
