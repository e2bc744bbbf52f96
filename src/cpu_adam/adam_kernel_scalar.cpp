#include "cpu_adam/adam_kernel.hpp"
#include "kernels/adam_formula.hpp"

// One element at a time, on any architecture.
namespace penstock::detail {

namespace {

struct Batch {
  static constexpr unsigned long size = 1;
  float value;

  Batch() = default;
  explicit Batch(float x) : value(x) {}
  friend Batch operator+(Batch a, Batch b) { return Batch(a.value + b.value); }
  friend Batch operator-(Batch a, Batch b) { return Batch(a.value - b.value); }
  friend Batch operator*(Batch a, Batch b) { return Batch(a.value * b.value); }
  friend Batch operator/(Batch a, Batch b) { return Batch(a.value / b.value); }
  friend Batch sqrt(Batch a) { return Batch(kernels::sqrt(a.value)); }
};

template <class T>
Batch load(const T* from) {
  return Batch(kernels::widen(*from));
}
template <class T>
void store(T* to, Batch x) {
  *to = kernels::narrow<T>(x.value);
}
bool is_zero(Batch x) {
  return x.value == 0.0f;
}

#include "cpu_adam/adam_kernel.inl"

}  // namespace

const AdamKernels adam_kernels_scalar = all_kernels;

}  // namespace penstock::detail
