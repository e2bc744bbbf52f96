// The Adam loop over one block. Each adam_kernel_<isa>.cpp includes this once, inside an anonymous namespace,
// after defining there:
//   Batch                          what adam_update computes in; Batch::size elements
//   load(const T*), store(T*, b)   for float; for kernels::Bf16 and Fp16 with conversion
//   is_zero(b)                     true when all elements are

// How far ahead memory is asked for, in elements. The divisions keep so few iterations in flight that the
// hardware's own prefetching is not enough: 1.1 to 1.2 times the rate of a loop without. Past the end of the
// block these are addresses that nobody looks at, or the next block.
constexpr unsigned long ahead = 512;

[[gnu::always_inline]] inline void prefetch(const float* p, const float* m, const float* v, const void* in,
                                            const void* out) {
  __builtin_prefetch(p, /*rw=*/1);
  __builtin_prefetch(m, /*rw=*/1);
  __builtin_prefetch(v, /*rw=*/1);
  __builtin_prefetch(in, /*rw=*/0);
  __builtin_prefetch(out, /*rw=*/1);
}

template <class Gradient, class Parameter>
bool update(const kernels::AdamCoefficients& coefficients, const AdamBlock& block) noexcept {
  const auto* gradient = static_cast<const Gradient*>(block.gradient);
  auto* parameter = static_cast<Parameter*>(block.parameter);
  const kernels::AdamDecay decay = coefficients.decay_mode;

  const kernels::AdamOperands<Batch> operands(coefficients);
  const unsigned long whole = block.count / Batch::size * Batch::size;
  Batch finite(0.0f);
  for (unsigned long i = 0; i < whole; i += Batch::size) {
    prefetch(block.master + ahead + i, block.m + ahead + i, block.v + ahead + i, gradient + ahead + i,
             parameter + ahead + i);
    Batch p = load(block.master + i), m = load(block.m + i), v = load(block.v + i);
    finite = finite + kernels::adam_update(decay, operands, load(gradient + i), p, m, v);
    store(block.master + i, p);
    store(block.m + i, m);
    store(block.v + i, v);
    store(parameter + i, p);
  }

  const kernels::AdamOperands<float> scalar_operands(coefficients);
  float tail_finite = 0.0f;
  for (unsigned long i = whole; i < block.count; ++i) {
    float &p = block.master[i], &m = block.m[i], &v = block.v[i];
    tail_finite += kernels::adam_update(decay, scalar_operands, kernels::widen(gradient[i]), p, m, v);
    parameter[i] = kernels::narrow<Parameter>(p);
  }
  return is_zero(finite) && tail_finite == 0.0f;
}

constexpr AdamKernels all_kernels = {{
    {update<float, float>, update<float, kernels::Bf16>, update<float, kernels::Fp16>},
    {update<kernels::Bf16, float>, update<kernels::Bf16, kernels::Bf16>,
     update<kernels::Bf16, kernels::Fp16>},
    {update<kernels::Fp16, float>, update<kernels::Fp16, kernels::Bf16>,
     update<kernels::Fp16, kernels::Fp16>},
}};
