#pragma once

#include "zero/engine/offloaded_optimizer.hpp"

#include <penstock/zero/engine/update_segment.hpp>

#include <cstdint>

namespace penstock::zero {

/// Updates tiles by a function of the caller: cuts each block into segments of parameters.
///
/// Used as OffloadedOptimizer::update_tile().
class CustomUpdate {
 public:
  /// `function` may be empty; then update_tile() is not called. All arguments outlive this object.
  CustomUpdate(const UpdateFunction& function, const ModelLayout& model, std::uint32_t rank)
      : function_(function), model_(model), rank_(rank) {}

  /// Errors: failed_state, naming the segment, for an error or an exception of the function; as custom_step().
  [[nodiscard]] Result<cpu_adam::UpdateOutcome> update_tile(const FlatLayout& flat, const TileState& tile,
                                                            const cpu_adam::OptimizerTile& view,
                                                            const OffloadedOptimizer::Step& step,
                                                            const cpu_adam::UpdateExecution& execution) const;

 private:
  [[nodiscard]] Result<void> call(const UpdateSegment& segment) const noexcept;

  const UpdateFunction& function_;
  const ModelLayout& model_;
  const std::uint32_t rank_;
};

}  // namespace penstock::zero
