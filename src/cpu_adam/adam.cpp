#include <penstock/cpu_adam/adam.hpp>

#include "cpu_adam/adam_kernel.hpp"
#include "cpu_adam/check_tile.hpp"
#include "kernels/floating_point_mode.hpp"

#include <penstock/kernels/host_gradient.hpp>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <limits>

namespace penstock {

namespace {

const detail::AdamKernels& kernels_of(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::x86_64_v2: return detail::adam_kernels_x86_64_v2;
    case Isa::x86_64_v3: return detail::adam_kernels_x86_64_v3;
    case Isa::x86_64_v4: return detail::adam_kernels_x86_64_v4;
#endif
    default: return detail::adam_kernels_scalar;
  }
}

/// Where the parts of block number `index` stand.
struct BlockView {
  std::uint64_t count;
  HostSpan state;
  ConstHostSpan gradient;  // empty where the tile has none
  HostSpan parameter;

  BlockView(const AdamTile& tile, std::size_t index) {
    const std::uint64_t first = index * block_elements.value();
    count = std::min(block_elements.value(), tile.elements.value() - first);
    const auto part = [&](auto span, std::uint64_t size) {
      return span.subspan(ByteCount(first * size), ByteCount(count * size));
    };
    state = part(tile.state, 3 * sizeof(float));
    parameter = part(tile.parameter, size_of(tile.parameter_dtype).value());
    if (!tile.gradient.empty()) gradient = part(tile.gradient, size_of(tile.gradient_dtype).value());
  }
  [[nodiscard]] float* master() const { return state.as<float>().data(); }
  [[nodiscard]] float* m() const { return master() + count; }
  [[nodiscard]] float* v() const { return master() + 2 * count; }
};

std::size_t block_count(const AdamTile& tile) {
  return ceil_divide(tile.elements.value(), block_elements.value());
}

/// What one worker saw; joined at the end, so that workers share nothing in the loop.
class SharedOutcome {
 public:
  void add(std::size_t updated, std::size_t first_rejected, std::size_t first_non_finite) noexcept {
    updated_.fetch_add(updated, std::memory_order_relaxed);
    lower(first_rejected_, first_rejected);
    lower(first_non_finite_, first_non_finite);
  }
  [[nodiscard]] AdamOutcome get() const {
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

void parallel_blocks(Workers* workers, std::size_t count, auto&& body) {
  if (workers) {
    workers->parallel_blocks(count, body);
  } else {
    body(0, count);
  }
}

}  // namespace

Result<AdamOutcome> adam_step(const AdamConfig& config, std::uint64_t step, float gradient_factor,
                              const AdamTile& tile, const AdamExecution& execution) {
  const auto coefficients = adam_coefficients(config, step, gradient_factor);
  if (!coefficients) return coefficients.error();
  PENSTOCK_TRY(detail::check_tile("adam_step", tile));
  PENSTOCK_TRY(detail::check_gradient("adam_step", tile));
  PENSTOCK_TRY(detail::check_isa("adam_step", execution.isa));

  const detail::AdamKernel update = kernels_of(execution.isa)
                                        .update[static_cast<std::size_t>(tile.gradient_dtype)]
                                               [static_cast<std::size_t>(tile.parameter_dtype)];
  SharedOutcome outcome;
  parallel_blocks(execution.workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    std::size_t updated = 0, first_rejected = SharedOutcome::none, first_non_finite = SharedOutcome::none;
    for (std::size_t block = first; block < last; ++block) {
      const BlockView view(tile, block);
      if (execution.observer && !execution.observer->before_update(block, view.state)) {
        first_rejected = std::min(first_rejected, block);
        continue;
      }
      const bool finite = update(*coefficients, {view.master(), view.m(), view.v(), view.gradient.data(),
                                                 view.parameter.data(), view.count});
      if (!finite) first_non_finite = std::min(first_non_finite, block);
      if (execution.observer) execution.observer->after_update(block, view.state);
      ++updated;
    }
    outcome.add(updated, first_rejected, first_non_finite);
  });
  return outcome.get();
}

Result<void> initialize_tile(ConstHostSpan initial, DType initial_dtype, const AdamTile& tile,
                             Workers* workers) {
  PENSTOCK_TRY(detail::check_tile("initialize_tile", tile));
  PENSTOCK_TRY(detail::check_initial("initialize_tile", initial, initial_dtype, tile));

  AdamTile target = tile;
  target.gradient = {};
  const ByteCount initial_size = size_of(initial_dtype);
  parallel_blocks(workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    for (std::size_t block = first; block < last; ++block) {
      const BlockView view(target, block);
      const auto convert = [](ConstHostSpan from, DType from_dtype, HostSpan to, DType to_dtype) {
        const bool landed =
            kernels::land_gradient({from, from_dtype, to, to_dtype}, kernels::GradientLanding::overwrite)
                .has_value();
        PENSTOCK_CHECK(landed);
      };
      const ByteCount master_size(view.count * sizeof(float));
      const HostSpan master = view.state.subspan(ByteCount(0), master_size);
      convert(initial.subspan(initial_size * (block * block_elements.value()), initial_size * view.count),
              initial_dtype, master, DType::fp32);
      std::memset(view.m(), 0, 2 * master_size.value());
      convert(master, DType::fp32, view.parameter, tile.parameter_dtype);
    }
  });
  return ok();
}

}  // namespace penstock
