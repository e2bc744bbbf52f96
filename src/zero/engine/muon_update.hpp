#pragma once

#include "cpu_adam/muon_step.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>

namespace penstock::zero {

/// Updates tiles of matrices by Muon, one at a time.
///
/// Used as OffloadedOptimizer::update_tile(); open() by the trainer's thread.
class MuonUpdate {
 public:
  /// `model` outlives this object.
  MuonUpdate(const ModelLayout& model, std::uint32_t rank) : model_(model), rank_(rank) {}

  /// `memory` of MemoryPlan::host_matrix bytes outlives the updates. Errors: those of MatrixProduct::instance().
  Result<void> open(HostSpan memory);

  /// Errors: as muon_step().
  [[nodiscard]] Result<cpu_adam::UpdateOutcome> update_tile(const FlatLayout& flat, const TileState& tile,
                                                            const cpu_adam::OptimizerTile& view,
                                                            const OffloadedOptimizer::Step& step,
                                                            const cpu_adam::UpdateExecution& execution) const;

 private:
  const ModelLayout& model_;
  const std::uint32_t rank_;
  const cpu_adam::MatrixProduct* product_ = nullptr;
  HostSpan memory_;
};

}  // namespace penstock::zero
