#include "zero/engine/muon_update.hpp"

#include <algorithm>

namespace penstock::zero {

Result<void> MuonUpdate::open(HostSpan memory) {
  PENSTOCK_TRY_ASSIGN(product_, cpu_adam::MatrixProduct::instance());
  memory_ = memory;
  return ok();
}

Result<cpu_adam::UpdateOutcome> MuonUpdate::update_tile(const FlatLayout& flat, const TileState& tile,
                                                        const cpu_adam::OptimizerTile& view,
                                                        const OffloadedOptimizer::Step& step,
                                                        const cpu_adam::UpdateExecution& execution) const {
  const GroupHyperparameters& group = step.settings[flat.group];
  const ElementCount begin = flat.shard * rank_ + tile.range.begin;
  const auto slot = std::find_if(flat.slots.begin(), flat.slots.end(),
                                 [&](const FlatSlot& one) { return one.begin == begin; });
  cpu_adam::MatrixShape shape;  // of none: the last range may have a matrix on some ranks only
  if (slot != flat.slots.end()) {
    const ParameterLayout& parameter = model_.parameter(slot->parameter);
    shape = {parameter.rows(), parameter.columns()};
  }
  return cpu_adam::muon_step(
      {.learning_rate = group.learning_rate, .momentum = group.beta1, .weight_decay = group.weight_decay},
      shape, step.gradient_factor, view, memory_, *product_, execution);
}

}  // namespace penstock::zero
