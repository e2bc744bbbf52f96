// Included by each host_loops_<isa>.cpp, inside an anonymous namespace of penstock::kernels, after defining
// there:
//   Lane     see kernels/lane.hpp: F with + and *, size (a divisor of 16), load and store; store makes NaNs
//            quiet and keeps their sign and upper bits
//   Squares  sums of squares of elements of type T in double: add() adds the next `step` elements, a multiple
//            of 16; store() writes the 16 partial sums
// No standard headers, for the reason given in element.hpp.

template <class From, class To>
void cast(const void* from, void* to, unsigned long count) {
  const From* __restrict const source = static_cast<const From*>(from);
  To* __restrict const destination = static_cast<To*>(to);
  unsigned long i = 0;
  for (; i + Lane::size <= count; i += Lane::size) Lane::store(destination + i, Lane::load(source + i));
  for (; i < count; ++i) ScalarLane::store(destination + i, ScalarLane::load(source + i));
}

template <class T>
void scale(void* x, float factor, unsigned long count) {
  T* const values = static_cast<T*>(x);
  const Lane::F factors(factor);
  unsigned long i = 0;
  for (; i + Lane::size <= count; i += Lane::size) Lane::store(values + i, Lane::load(values + i) * factors);
  for (; i < count; ++i) ScalarLane::store(values + i, ScalarLane::load(values + i) * factor);
}

template <class X, class Sum>
void accumulate(const void* x, void* sum, unsigned long count) {
  const X* __restrict const values = static_cast<const X*>(x);
  Sum* __restrict const sums = static_cast<Sum*>(sum);
  unsigned long i = 0;
  for (; i + Lane::size <= count; i += Lane::size) {
    Lane::store(sums + i, Lane::load(sums + i) + Lane::load(values + i));
  }
  for (; i < count; ++i) {
    ScalarLane::store(sums + i, ScalarLane::load(sums + i) + ScalarLane::load(values + i));
  }
}

template <class T>
double square_sum(const void* x, unsigned long count) {
  constexpr unsigned long lanes = 16;
  const T* const values = static_cast<const T*>(x);
  Squares<T> squares{};
  unsigned long i = 0;
  for (; i + Squares<T>::step <= count; i += Squares<T>::step) squares.add(values + i);
  double sums[lanes];
  squares.store(sums);
  for (; i < count; ++i) {
    const double value = widen(values[i]);
    sums[i % lanes] += value * value;
  }
  for (unsigned long half = lanes / 2; half > 0; half /= 2) {
    for (unsigned long lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  return sums[0];
}

constexpr HostLoops all_loops = {
    .cast = {{nullptr, cast<float, Bf16>, cast<float, Fp16>},
             {cast<Bf16, float>, nullptr, cast<Bf16, Fp16>},
             {cast<Fp16, float>, cast<Fp16, Bf16>, nullptr}},
    .scale = {scale<float>, scale<Bf16>, scale<Fp16>},
    .accumulate = {{accumulate<float, float>, accumulate<float, Bf16>, accumulate<float, Fp16>},
                   {accumulate<Bf16, float>, accumulate<Bf16, Bf16>, accumulate<Bf16, Fp16>},
                   {accumulate<Fp16, float>, accumulate<Fp16, Bf16>, accumulate<Fp16, Fp16>}},
    .square_sum = {square_sum<float>, square_sum<Bf16>, square_sum<Fp16>}};
