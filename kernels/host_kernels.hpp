#pragma once

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <span>

// The loops of HostCompute and host_gradient.hpp. Callers have checked that lengths match and operands are aligned to
// their element. Each function sets the floating-point mode that it needs.
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
/// All inputs have dtype `dtype`; `out` may be one of them.
void mean_elements(std::span<const std::byte* const> x, DType dtype, Elements out,
                   std::uint64_t count) noexcept;
/// Compute::square_sums, in its documented order.
void square_sums_of_elements(ConstElements x, std::uint64_t count, double* partials) noexcept;

}  // namespace penstock::kernels
