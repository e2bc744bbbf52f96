#include "zero/layout/plan_checks.hpp"

#include <algorithm>

namespace penstock::zero {

namespace {

/// Checks the number of ranks, which Config::validate() does not know.
Result<void> check_ranks(const Config& config, std::uint32_t ranks, std::uint32_t local_ranks,
                         std::uint32_t local_rank) {
  if (ranks == 0) return Error::invalid_argument("plan_memory").object("ranks").wanted("1 or more").got(0u);
  if (local_ranks == 0 || ranks < local_ranks) {
    return Error::invalid_argument("plan_memory")
        .object("local_ranks")
        .wanted("from 1 to " + std::to_string(ranks) + ", the number of all ranks")
        .got(local_ranks);
  }
  if (local_rank >= local_ranks) {
    return Error::invalid_argument("plan_memory")
        .object("local_rank")
        .wanted("below " + std::to_string(local_ranks) + ", the number of ranks of this machine")
        .got(local_rank);
  }
  const std::size_t nodes = config.penstock.rank_nodes.size();
  if (nodes == 0 || nodes == local_ranks) return ok();
  return Error::invalid_config("plan_memory")
      .object("penstock.rank_nodes")
      .wanted(std::to_string(local_ranks) + ", one for each rank of this machine")
      .got(std::to_string(nodes) + " numbers");
}

/// Checks that no unit is larger than the configuration permits.
Result<void> check_units(const Config& config, const ModelLayout& model) {
  const ElementCount most = config.penstock.unit_elements_max;
  if (most.is_zero()) return ok();
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
    ElementCount count;
    for (const ParameterId id : model.parameters_of(unit)) count += model.parameter(id).count;
    if (count <= most) continue;
    return Error::invalid_argument("plan_memory")
        .reason("the unit is too large")
        .object(model.units[unit].name)
        .where("penstock.unit_elements_max")
        .wanted("at most " + to_string(most))
        .got(count)
        .advice("cut its matrices into row blocks with cut_rows(), each a unit; or raise the limit");
  }
  return ok();
}

/// Muon updates the groups that say so, and there is one at least.
Result<void> check_muon(const Config& config, const ModelLayout& model) {
  const bool is_muon = config.optimizer.type == cpu_adam::Optimizer::muon;
  bool is_used = false, is_trained = false;
  for (const UnitLayout& unit : model.units) {
    for (const ParameterLayout& parameter : unit.parameters) {
      const OptimizerGroup& group = model.groups[parameter.group];
      is_trained = is_trained || !group.frozen;
      is_used = is_used || (group.use_muon && !group.frozen);
    }
  }
  if (is_muon && !is_trained) return ok();  // a reference model
  if (is_muon == is_used) return ok();
  return Error::invalid_config("plan_memory")
      .object("optimizer.type")
      .reason(is_muon
                  ? "no parameter of the layout is in an optimizer group with use_muon, so that Muon would "
                    "update nothing"
                  : "a parameter of the layout is in an optimizer group with use_muon")
      .wanted(
          is_muon
              ? "ParameterLayout::group of an OptimizerGroup with use_muon, for the hidden layers' matrices"
              : "Muon")
      .got(std::string(to_string(config.optimizer.type)))
      .advice(is_muon ? "put matrices into a group with use_muon, or use AdamW"
                      : "set optimizer.type to \"Muon\", or leave out use_muon");
}

}  // namespace

Result<void> check_inputs(const Config& config, const ModelLayout& model, std::uint32_t ranks,
                          std::uint32_t local_ranks, std::uint32_t local_rank) {
  PENSTOCK_TRY(config.validate());
  PENSTOCK_TRY(model.validate());
  PENSTOCK_TRY(check_ranks(config, ranks, local_ranks, local_rank));
  PENSTOCK_TRY(check_units(config, model));
  return check_muon(config, model);
}

/// Only Adam has a kernel for the device.
Result<void> check_optimizer_place(const MemoryPlan& plan, const Config& config) {
  if (config.optimizer.type == cpu_adam::Optimizer::adam || !plan.gradients_on_device) return ok();
  return Error::unsupported("plan_memory")
      .reason("the device has no kernel for the optimizer, whose states would be kept there")
      .object("optimizer.type")
      .got(std::string(to_string(config.optimizer.type)))
      .advice("set zero_optimization.offload_optimizer.device to cpu or nvme, or use Adam");
}

}  // namespace penstock::zero
