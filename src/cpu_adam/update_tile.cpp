#include "cpu_adam/update_tile.hpp"

#include "cpu_adam/check_tile.hpp"
#include "cpu_adam/update_blocks.hpp"
#include "kernels/rounding_seed.hpp"

#include <algorithm>

namespace penstock::cpu_adam::detail {

namespace {

const Kernels& kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::x86_64_v2: return adam_kernels_x86_64_v2;
    case Isa::x86_64_v3: return adam_kernels_x86_64_v3;
    case Isa::x86_64_v4: return adam_kernels_x86_64_v4;
#elif defined(__aarch64__)
    case Isa::neon: return adam_kernels_neon;
#endif
    default: return adam_kernels_scalar;
  }
}

}  // namespace

Result<UpdateOutcome> update_tile(const char* operation, std::span<const Piece> pieces, std::uint64_t step,
                                  const OptimizerTile& tile, const UpdateExecution& execution) {
  PENSTOCK_TRY(check_tile(operation, tile));
  PENSTOCK_TRY(check_gradient(operation, tile));
  PENSTOCK_TRY(check_isa(operation, execution.isa));

  const FormatKernels& format_kernels =
      kernels_of(execution.isa)
          .of[static_cast<std::size_t>(tile.optimizer)][static_cast<std::size_t>(tile.format)];
  const Kernel kernel = format_kernels.update[static_cast<std::size_t>(tile.gradient_dtype)]
                                             [static_cast<std::size_t>(tile.parameter_dtype)];
  const bool nontemporal = execution.nontemporal_parameter && tile.format == StateFormat::fp32 &&
                           reinterpret_cast<std::uintptr_t>(tile.parameter.data()) % 64 == 0;
  return update_blocks(tile, execution, [&](const BlockView& view) noexcept {
    const auto piece =
        std::upper_bound(pieces.begin(), pieces.end(), view.first,
                         [](std::uint64_t element, const Piece& one) { return element < one.end; });
    const bool finite =
        kernel({.state = view.state.data(),
                .gradient = view.gradient.data(),
                .parameter = view.parameter.data(),
                .first = view.first,
                .count = view.count,
                .pieces = &*piece,
                .seed = kernels::rounding_seed(step, tile.first_element + view.first),
                .nontemporal_parameter = nontemporal && piece->end >= view.first + view.count});
    return finite ? BlockResult::finite : BlockResult::non_finite;
  });
}

}  // namespace penstock::cpu_adam::detail
