#pragma once

#include "cpu_adam/block_view.hpp"
#include "kernels/floating_point_mode.hpp"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <optional>

namespace penstock::cpu_adam::detail {

enum class BlockResult : std::uint8_t {
  finite,
  non_finite,  ///< a number that UpdateOutcome reports
  failed,      ///< updated in part: the observer does not get it, and no other block begins
};

/// The outcome of all workers. Each worker adds its own once, at its end, so that workers share nothing in the loop.
class SharedOutcome {
 public:
  /// No worker begins another block.
  void stop() noexcept { stopped_.store(true, std::memory_order_relaxed); }
  [[nodiscard]] bool stopped() const noexcept { return stopped_.load(std::memory_order_relaxed); }
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
  std::atomic<bool> stopped_ = false;
};

/// Calls update(view), which returns a BlockResult, for each block that the observer does not reject: the loop of all
/// optimizers, on the workers.
template <class Update>
UpdateOutcome update_blocks(const OptimizerTile& tile, const UpdateExecution& execution,
                            const Update& update) {
  SharedOutcome outcome;
  parallel_blocks(execution.workers, block_count(tile), [&](std::size_t first, std::size_t last) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    std::size_t updated = 0, first_rejected = SharedOutcome::none, first_non_finite = SharedOutcome::none;
    for (std::size_t block = first; block < last && !outcome.stopped(); ++block) {
      const BlockView view(tile, block);
      if (execution.observer && !execution.observer->before_update(block, view.state)) {
        first_rejected = std::min(first_rejected, block);
        continue;
      }
      const BlockResult result = update(view);
      if (result == BlockResult::failed) {
        outcome.stop();
        break;
      }
      if (result == BlockResult::non_finite) first_non_finite = std::min(first_non_finite, block);
      if (execution.observer) execution.observer->after_update(block, view.state);
      ++updated;
    }
    outcome.add(updated, first_rejected, first_non_finite);
  });
  return outcome.get();
}

}  // namespace penstock::cpu_adam::detail
