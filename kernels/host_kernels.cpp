#include "kernels/host_kernels.hpp"

#include "kernels/floating_point_mode.hpp"
#include "kernels/host_loops.hpp"
#include "kernels/operands.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/kernels/variants.hpp>

#include <algorithm>
#include <cstring>

namespace penstock::kernels {

namespace {

const HostLoops& loops_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::x86_64_v3: return host_loops_x86_64_v3;
    case Isa::x86_64_v4: return host_loops_x86_64_v4;
#endif
    default: return host_loops_baseline;
  }
}
const HostLoops& loops() {
  static const HostLoops& best = loops_of(best_isa().isa);
  return best;
}
std::size_t number(DType dtype) {
  return static_cast<std::size_t>(dtype);
}

void cast_under_mode(ConstElements from, Elements to, std::uint64_t count) {
  if (from.dtype == to.dtype) {
    if (from.data != to.data) std::memcpy(to.data, from.data, count * size_of(to.dtype).value());
  } else {
    loops().cast[number(from.dtype)][number(to.dtype)](from.data, to.data, count);
  }
}

}  // namespace

void cast_elements(ConstElements from, Elements to, std::uint64_t count) noexcept {
  if (count == 0) return;
  const DefaultFloatingPointMode mode;
  cast_under_mode(from, to, count);
}

void scale_elements(Elements x, float factor, std::uint64_t count) noexcept {
  const DefaultFloatingPointMode mode;
  loops().scale[number(x.dtype)](x.data, factor, count);
}

void accumulate_elements(ConstElements x, Elements sum, std::uint64_t count) noexcept {
  const DefaultFloatingPointMode mode;
  loops().accumulate[number(x.dtype)][number(sum.dtype)](x.data, sum.data, count);
}

void mean_elements(std::span<const std::byte* const> x, DType dtype, Elements out,
                   std::uint64_t count) noexcept {
  // The mean of one input is a copy, as in NCCL.
  if (x.size() == 1) return cast_elements({x[0], dtype}, out, count);
  // Fits in L1. All inputs of a chunk are read before `out` is written, because `out` may be one of them.
  constexpr std::uint64_t chunk = 1024;
  float values[chunk];
  const Elements sums{reinterpret_cast<std::byte*>(values), DType::fp32};

  const float factor = mean_factor(x.size());
  const DefaultFloatingPointMode mode;
  for (std::uint64_t first = 0; first < count; first += chunk) {
    const std::uint64_t length = std::min(chunk, count - first);
    const auto input = [&](const std::byte* data) { return data + first * size_of(dtype).value(); };
    cast_under_mode({input(x[0]), dtype}, sums, length);
    for (const std::byte* other : x.subspan(1)) {
      loops().accumulate[number(dtype)][number(DType::fp32)](input(other), values, length);
    }
    loops().scale[number(DType::fp32)](values, factor, length);
    cast_under_mode({sums.data, sums.dtype}, {out.data + first * size_of(out.dtype).value(), out.dtype},
                    length);
  }
}

void square_sums_of_elements(ConstElements x, std::uint64_t count, double* partials) noexcept {
  constexpr std::uint64_t block = Compute::square_sum_block;
  const DefaultFloatingPointMode mode;
  for (std::uint64_t first = 0; first < count; first += block) {
    partials[first / block] = loops().square_sum[number(x.dtype)](x.data + first * size_of(x.dtype).value(),
                                                                  std::min(block, count - first));
  }
}

}  // namespace penstock::kernels
