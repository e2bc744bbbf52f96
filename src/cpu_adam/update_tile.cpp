#include "cpu_adam/update_tile.hpp"

#include "cpu_adam/block_view.hpp"
#include "cpu_adam/check_tile.hpp"
#include "kernels/floating_point_mode.hpp"
#include "kernels/rounding_seed.hpp"

#include <algorithm>
#include <atomic>
#include <limits>

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

/// The outcome of all workers. Each worker adds its own once, at its end, so that workers share nothing in the loop.
class SharedOutcome {
 public:
  void add(std::size_t updated, std::size_t first_rejected, std::size_t first_non_finite) noexcept {
    updated_.fetch_add(updated, std::memory_order_relaxed);
    lower(first_rejected_, first_rejected);
    lower(first_non_finite_, first_non_finite);
  }
  [[nodiscard]] UpdateOutcome get() const {
    const auto optional = [](const std::atomic<std::size_t>& block) {
      const std::size_t value = block.load(std::memory_order_relaxed);
      return value == none ? std::optional<std::size_t>() : value;
    };
    return {updated_.load(std::memory_order_relaxed), optional(first_rejected_), optional(first_non_finite_)};
  }

  static constexpr std::size_t none = std::numeric_limits<std::size_t>::max();

 private:
  static void lower(std::atomic<std::size_t>& lowest, std::size_t block) noexcept {
    std::size_t seen = lowest.load(std::memory_order_relaxed);
    while (block < seen && !lowest.compare_exchange_weak(seen, block, std::memory_order_relaxed)) {
    }
  }

  std::atomic<std::size_t> updated_ = 0, first_rejected_ = none, first_non_finite_ = none;
};

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
  SharedOutcome outcome;
  parallel_blocks(execution.workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    std::size_t updated = 0, first_rejected = SharedOutcome::none, first_non_finite = SharedOutcome::none;
    const Piece* piece = pieces.data();
    for (std::size_t block = first; block < last; ++block) {
      const BlockView view(tile, block);
      while (piece->end <= view.first) ++piece;
      if (execution.observer && !execution.observer->before_update(block, view.state)) {
        first_rejected = std::min(first_rejected, block);
        continue;
      }
      const bool finite =
          kernel({.state = view.state.data(),
                  .gradient = view.gradient.data(),
                  .parameter = view.parameter.data(),
                  .first = view.first,
                  .count = view.count,
                  .pieces = piece,
                  .seed = kernels::rounding_seed(step, tile.first_element + view.first),
                  .nontemporal_parameter = nontemporal && piece->end >= view.first + view.count});
      if (!finite) first_non_finite = std::min(first_non_finite, block);
      if (execution.observer) execution.observer->after_update(block, view.state);
      ++updated;
    }
    outcome.add(updated, first_rejected, first_non_finite);
  });
  return outcome.get();
}

}  // namespace penstock::cpu_adam::detail
