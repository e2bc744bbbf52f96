// Included by each host_loops_<isa>.cpp, inside an anonymous namespace of penstock::kernels. The compiler
// vectorises them: no standard headers, for the reason given in element.hpp.

template <class From, class To>
void cast(const void* from, void* to, unsigned long count) {
  const From* __restrict const source = static_cast<const From*>(from);
  To* __restrict const destination = static_cast<To*>(to);
  for (unsigned long i = 0; i < count; ++i) destination[i] = narrow<To>(widen(source[i]));
}

template <class T>
void scale(void* x, float factor, unsigned long count) {
  T* const values = static_cast<T*>(x);
  for (unsigned long i = 0; i < count; ++i) values[i] = narrow<T>(widen(values[i]) * factor);
}

template <class X, class Sum>
void accumulate(const void* x, void* sum, unsigned long count) {
  const X* __restrict const values = static_cast<const X*>(x);
  Sum* __restrict const sums = static_cast<Sum*>(sum);
  for (unsigned long i = 0; i < count; ++i) sums[i] = narrow<Sum>(widen(sums[i]) + widen(values[i]));
}

template <class T>
double square_sum(const void* x, unsigned long count) {
  constexpr unsigned long lane_count = 16;
  const T* const values = static_cast<const T*>(x);
  double lanes[lane_count] = {};
  const unsigned long whole = count / lane_count * lane_count;
  for (unsigned long i = 0; i < whole; i += lane_count) {
    for (unsigned long lane = 0; lane < lane_count; ++lane) {
      const double value = widen(values[i + lane]);
      lanes[lane] += value * value;
    }
  }
  for (unsigned long i = whole; i < count; ++i) {
    const double value = widen(values[i]);
    lanes[i - whole] += value * value;
  }
  for (unsigned long half = lane_count / 2; half > 0; half /= 2) {
    for (unsigned long lane = 0; lane < half; ++lane) lanes[lane] += lanes[lane + half];
  }
  return lanes[0];
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
