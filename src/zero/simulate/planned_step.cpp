#include "zero/simulate/planned_step.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero::simulate {

Result<PlannedStep> plan_step(const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                              const StepShape& shape) {
  PlannedStep step;
  StepShape whole = shape;
  whole.all_tiles = whole.checkpoints = true;
  PENSTOCK_TRY_ASSIGN(step.trace, derive_trace(config, model, plan, whole));
  const swap::RuntimeOptions runtime = plan.runtime_options(config, 0);
  ByteCount resident;
  for (const auto& tensor : step.trace.tensors)
    if (!tensor.on_disk) resident += round_up(tensor.size, extent_alignment);
  step.options = {.host_budget = plan.host_staging() + resident,
                  .eviction = runtime.eviction,
                  .reuse_distance_max = runtime.reuse_distance_max,
                  .lookahead = runtime.lookahead,
                  .update_beside = true,
                  .update_in_backward = config.penstock.update_in_backward,
                  .dropped_ahead = plan.tiles_ahead};
  step.update = plan.update;
  step.kept_states = plan.device_tiles;
  return step;
}

void set_use(swap::ReplayCosts& costs, const swap::AccessTrace& trace, const PhaseSeconds& seconds) {
  using tiers::Purpose;
  double shards = 0, gradients = 0, tiles = 0;  // bytes
  for (const auto& use : trace.uses) {
    const auto& tensor = trace.tensors[use.tensor];
    const auto bytes = static_cast<double>(tensor.size.value());
    if (tensor.purpose == Purpose::optimizer_tile) {
      tiles += bytes;
    } else if (is_update(trace, use)) {
      continue;
    } else if (tensor.purpose == Purpose::parameter_shard) {
      shards += bytes;
    } else if (tensor.purpose == Purpose::gradient_shard) {
      gradients += bytes;
    }
  }
  const auto set = [&](Purpose purpose, double bytes, double of_them) {
    costs.use[static_cast<std::size_t>(purpose)] = of_them > 0 ? bytes / of_them : 0;
  };
  const double of_gradients = gradients > 0 ? std::max(0.0, seconds.backward - seconds.forward) : 0;
  set(Purpose::parameter_shard, shards, seconds.forward + seconds.backward - of_gradients);
  set(Purpose::gradient_shard, gradients, of_gradients);
  set(Purpose::optimizer_tile, tiles, seconds.update);
}

}  // namespace penstock::zero::simulate
