#include "zero/layout/plan_fingerprint.hpp"

#include <algorithm>
#include <bit>
#include <vector>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::zero {

std::uint64_t plan_fingerprint(const Config& config, const ModelLayout& model, std::uint32_t ranks) {
  std::vector<std::uint64_t> facts = {ranks,
                                      static_cast<std::uint64_t>(config.dtype),
                                      static_cast<std::uint64_t>(config.grad_accum_dtype),
                                      static_cast<std::uint64_t>(config.offload_param.device),
                                      static_cast<std::uint64_t>(config.offload_optimizer.device),
                                      static_cast<std::uint64_t>(config.penstock.state_format),
                                      static_cast<std::uint64_t>(config.optimizer.type),
                                      config.penstock.tile().value(),
                                      config.penstock.tiles_in_flight,
                                      static_cast<std::uint64_t>(config.penstock.update_split),
                                      std::bit_cast<std::uint32_t>(config.cpu_update_ratio),
                                      config.penstock.update_in_backward,
                                      config.penstock.host_budget.value(),
                                      config.penstock.node_budgets.size(),
                                      config.penstock.device_budget.value(),
                                      config.penstock.device_states.value(),
                                      config.penstock.reduction == Reduction::exact,
                                      config.gradient_accumulation_steps,
                                      config.reduce_bucket_size.value(),
                                      config.overlaps_communication(),
                                      config.prefetch_bucket_size.value(),
                                      config.max_live_parameters.value(),
                                      config.param_persistence_threshold.value(),
                                      config.model_persistence_threshold.value(),
                                      config.max_reuse_distance.value(),
                                      config.penstock.release == Release::reuse_distance,
                                      config.max_in_cpu ? config.max_in_cpu->value() + 1 : 0,
                                      model.checkpoints.count,
                                      model.checkpoints.size.value(),
                                      model.checkpoints.leased_max,
                                      model.checkpoints.reads,
                                      model.groups.size(),
                                      config.is_durable()};
  for (const ByteCount budget : config.penstock.node_budgets) facts.push_back(budget.value());
  // They say which rank has which budget; else they need no memory.
  if (!config.penstock.node_budgets.empty())
    facts.insert(facts.end(), config.penstock.rank_nodes.begin(), config.penstock.rank_nodes.end());
  for (const OptimizerGroup& group : model.groups)
    facts.push_back(std::uint64_t{group.frozen} + 2 * std::uint64_t{group.use_muon});
  for (const UnitLayout& unit : model.units) {
    facts.push_back(unit.parameters.size());
    for (const ParameterLayout& parameter : unit.parameters) {
      facts.push_back(parameter.count.value());
      facts.push_back(parameter.group);
      facts.push_back(parameter.shape.size());
      facts.insert(facts.end(), parameter.shape.begin(), parameter.shape.end());
    }
    facts.push_back(unit.shared.size());
    for (const ParameterId& shared : unit.shared) {
      facts.push_back(shared.unit);
      facts.push_back(shared.index);
    }
  }
  return std::max<std::uint64_t>(1, XXH3_64bits(facts.data(), facts.size() * sizeof(facts[0])));
}

}  // namespace penstock::zero
