#include "zero/simulate/planned_step.hpp"

#include "zero/layout/padded.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero::simulate {

using swap::DiskRates;

Result<PlannedStep> plan_step(const Config& config, const ModelLayout& model, const MemoryPlan& plan,
                              const StepShape& shape) {
  PlannedStep step;
  PENSTOCK_TRY_ASSIGN(step.trace, derive_trace(config, model, plan, shape));
  const swap::RuntimeOptions runtime = plan.runtime_options(config, 0);
  ByteCount resident;
  for (const auto& tensor : step.trace.tensors)
    if (!tensor.on_disk) resident += round_up(tensor.size, extent_alignment);
  step.options = {.host_budget = plan.host_staging() + resident,
                  .eviction = runtime.eviction,
                  .reuse_distance_max = runtime.reuse_distance_max,
                  .lookahead = runtime.lookahead,
                  .update_beside = true,
                  .dropped_ahead = plan.tiles_ahead};
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
    } else if (!is_update(trace, use)) {
      (tensor.purpose == Purpose::parameter_shard ? shards : gradients) += bytes;
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

namespace {

double seconds_at(double amount, double rate) {
  return rate > 0 ? amount / rate : 0;
}

Error not_given(const char* key) {
  return Error::invalid_argument("simulate")
      .object(key)
      .reason("the machine file does not give it")
      .advice("add it, see docs/simulation.md");
}

}  // namespace

double model_operations(const ModelLayout& model, const TrainingRun& run) {
  return 6.0 * static_cast<double>(model.element_count().value()) * static_cast<double>(run.tokens) *
         run.micro_batches;
}

Result<Machine> share_of(const Machine& node, const ModelLayout& model, const swap::AccessTrace& trace,
                         const TrainingRun& run) {
  if (run.tokens == 0)
    return Error::invalid_argument("simulate").object("tokens").wanted("1 or more").got(std::uint64_t{0});
  if (node.device.flops == 0) return not_given("device.flops");
  if (node.update == 0) return not_given("update");
  Machine share = node;
  const double parts = run.ranks_per_node;
  for (double DiskRates::*rate : {&DiskRates::read, &DiskRates::write, &DiskRates::mixed})
    share.costs.disk.*rate /= parts;
  share.endurance = node.endurance / run.ranks_per_node;

  const auto parameters = static_cast<double>(model.element_count().value());
  const double ranks = run.ranks, forward = model_operations(model, run) / 3;
  const double shards = 2 * parameters / ranks * run.micro_batches, others = shards * (ranks - 1);  // bytes
  const auto longest = [&](double operations, double times) {
    return std::max({seconds_at(operations, node.device.flops), seconds_at(others * times, node.device.link),
                     seconds_at(shards * times, node.device.host_copy)});
  };
  double tiles = 0;
  for (const auto& use : trace.uses) {
    const auto& tensor = trace.tensors[use.tensor];
    if (tensor.purpose == tiers::Purpose::optimizer_tile) tiles += static_cast<double>(tensor.size.value());
  }
  set_use(share.costs, trace,
          {.forward = longest(forward, 1),
           .backward = longest(forward * (run.recompute ? 3 : 2), 2),
           .update = tiles / (node.update / parts)});
  return share;
}

}  // namespace penstock::zero::simulate
