#include <penstock/kernels/variants.hpp>

namespace penstock {

namespace {

#if defined(__x86_64__)
// libgcc checks CPUID and, with XGETBV, that the operating system saves the registers.
IsaChoice probe() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("x86-64-v4")) return {Isa::x86_64_v4, "the widest there is"};
  if (__builtin_cpu_supports("x86-64-v3")) return {Isa::x86_64_v3, "no AVX-512 here"};
  if (__builtin_cpu_supports("x86-64-v2")) return {Isa::x86_64_v2, "no AVX2 here"};
  return {Isa::scalar, "no SSE4.2 here"};
}
#elif defined(__aarch64__)
IsaChoice probe() {
  return {Isa::neon, "the widest there is"};
}
#else
IsaChoice probe() {
  return {Isa::scalar, "no SIMD kernel for this architecture"};
}
#endif

}  // namespace

std::string_view to_string(Isa isa) {
  switch (isa) {
    case Isa::scalar: return "scalar";
    case Isa::x86_64_v2: return "x86-64-v2";
    case Isa::x86_64_v3: return "x86-64-v3";
    case Isa::x86_64_v4: return "x86-64-v4";
    case Isa::neon: return "neon";
  }
  return "unknown";
}

bool is_runnable(Isa isa) {
  const Isa best = best_isa().isa;
  // Each level of x86-64 includes those below it.
  return isa == best || isa == Isa::scalar || (best != Isa::neon && isa < best);
}

IsaChoice best_isa() {
  static const IsaChoice choice = probe();
  return choice;
}

}  // namespace penstock

namespace penstock::kernels {

std::string_view to_string(StateFormat format) {
  switch (format) {
    case StateFormat::fp32: return "fp32";
    case StateFormat::split: return "split";
    case StateFormat::split_bf16: return "split_bf16";
    case StateFormat::split_q8: return "split_q8";
    case StateFormat::moments: return "moments";
    case StateFormat::moments_bf16: return "moments_bf16";
  }
  return "unknown";
}

}  // namespace penstock::kernels
