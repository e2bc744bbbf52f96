#pragma once

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// The loops behind HostCompute and host_gradient.hpp. Operands are checked by the callers: right lengths,
// aligned to their element. Each sets the floating-point mode it needs.
namespace penstock::kernels {

/// An address and the dtype of the elements there.
struct Elements {
  std::byte* data;
  DType dtype;
};
struct ConstElements {
  const std::byte* data;
  DType dtype;
};

void cast_elements(ConstElements from, Elements to, std::uint64_t count) noexcept;
void scale_elements(Elements x, float factor, std::uint64_t count) noexcept;
void accumulate_elements(ConstElements x, Elements sum, std::uint64_t count) noexcept;
/// All of `x` are of one dtype; `out` may be one of them.
void mean_elements(std::span<const std::byte* const> x, DType dtype, Elements out,
                   std::uint64_t count) noexcept;
/// Compute::square_sums, in its documented order.
void square_sums_of_elements(ConstElements x, std::uint64_t count, double* partials) noexcept;

}  // namespace penstock::kernels
