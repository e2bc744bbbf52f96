#include "zero/simulate/planned_step.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
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
                  .dropped_ahead = plan.tiles_ahead,
                  .dropped_ahead_later = plan.tiles_ahead_next_flats,
                  .dropped_between = shape.micro_batches > 1 ? 0 : plan.update.tiles_between,
                  .stores_max = config.penstock.tiles_in_flight};
  step.update = plan.update;
  step.kept_states = plan.device_tiles;
  step.stays_gathered = !config.shards_parameters();
  return step;
}

/// A forward gathers shards in the order of their first gathers. A backward begins where one comes that is not after
/// the last one, and ends with the last gradient of a micro-batch.
GatheredBytes gathered_bytes(const swap::AccessTrace& trace) {
  using tiers::Purpose;
  std::map<std::uint32_t, std::size_t> order;  // of shards
  std::set<std::uint32_t> gradients;
  for (const auto& use : trace.uses) {
    if (is_update(trace, use)) continue;
    const Purpose purpose = trace.tensors[use.tensor].purpose;
    if (purpose == Purpose::gradient_shard) gradients.insert(use.tensor);
    if (purpose == Purpose::parameter_shard) order.emplace(use.tensor, order.size());
  }
  GatheredBytes bytes;
  std::optional<std::size_t> last;  // of the forward in progress
  bool is_backward = false;
  std::size_t reduced = 0;
  for (const auto& use : trace.uses) {
    if (is_update(trace, use)) continue;
    const auto& tensor = trace.tensors[use.tensor];
    const auto size = static_cast<double>(tensor.size.value());
    if (tensor.purpose == Purpose::gradient_shard) {
      bytes.gradients += size;
      if (++reduced % gradients.size() != 0) continue;
      ++bytes.micro_batches;
      is_backward = false;
      last.reset();
    } else if (tensor.purpose == Purpose::parameter_shard) {
      is_backward = is_backward || (last && order[use.tensor] <= *last);
      last = order[use.tensor];
      (is_backward ? bytes.backward : bytes.forward) += size;
      if (!is_backward && bytes.micro_batches == 0) bytes.first_forward += size;
    }
  }
  return bytes;
}

void set_use(swap::ReplayCosts& costs, const swap::AccessTrace& trace, const PhaseSeconds& seconds) {
  using tiers::Purpose;
  double tiles = 0, checkpoints = 0;  // bytes
  for (const auto& use : trace.uses) {
    const auto& tensor = trace.tensors[use.tensor];
    if (tensor.purpose == Purpose::optimizer_tile) tiles += static_cast<double>(tensor.size.value());
    if (tensor.purpose == Purpose::checkpoint) checkpoints += static_cast<double>(tensor.size.value());
  }
  const GatheredBytes bytes = gathered_bytes(trace);
  const double both = seconds.forward + seconds.backward, shards = bytes.forward + bytes.backward,
               first = seconds.forward / static_cast<double>(std::max<std::size_t>(bytes.micro_batches, 1)),
               of_shards = bytes.first_forward > 0 ? first * shards / bytes.first_forward : 0;
  const double of_gradients = bytes.gradients > 0 ? std::max(0.0, both - of_shards) : 0;
  const auto set = [&](Purpose purpose, double used, double of_them) {
    costs.use[static_cast<std::size_t>(purpose)] = of_them > 0 ? used / of_them : 0;
  };
  // Of a rank whose parameters and gradients stay on the device, checkpoints are all that the trainer uses.
  if (shards + bytes.gradients == 0) set(Purpose::checkpoint, checkpoints, both);
  set(Purpose::parameter_shard, shards, both - of_gradients);
  set(Purpose::gradient_shard, bytes.gradients, of_gradients);
  set(Purpose::optimizer_tile, tiles, seconds.update);
}

}  // namespace penstock::zero::simulate
