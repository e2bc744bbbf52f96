#include <penstock/cpu_adam/square_sum.hpp>

#include "kernels/host_gradient.hpp"
#include "kernels/operands.hpp"

#include <penstock/base/check.hpp>
#include <penstock/base/compute.hpp>

#include <algorithm>
#include <cstddef>
#include <span>
#include <vector>

namespace penstock::cpu_adam {

Result<double> square_sum(ConstHostSpan gradient, DType dtype, parallel::Workers* workers) {
  PENSTOCK_TRY(kernels::check_operand("square_sum", "gradient", kernels::ByteRange::of(gradient), dtype));
  const ByteCount block_bytes = size_of(dtype) * Compute::square_sum_block;
  std::vector<double> partials(ceil_divide(gradient.size().value(), block_bytes.value()));
  const auto sum_blocks = [&](std::size_t first, std::size_t last) {
    const ByteCount begin = block_bytes * first, end = std::min(block_bytes * last, gradient.size());
    const auto summed = kernels::square_sums(gradient.subspan(begin, end - begin), dtype,
                                             std::span(partials).subspan(first, last - first));
    PENSTOCK_CHECK(summed.has_value());
  };
  if (workers != nullptr) {
    workers->parallel_blocks(partials.size(), sum_blocks);
  } else if (!partials.empty()) {
    sum_blocks(0, partials.size());
  }
  return sum_tree(partials);
}

}  // namespace penstock::cpu_adam
