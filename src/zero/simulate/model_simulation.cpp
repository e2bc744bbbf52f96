#include "zero/simulate/model_simulation.hpp"

#include "zero/simulate/in_parallel.hpp"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::zero::simulate {

Machine share_of(const Machine& node, const PlannedStep& step, const StepWork& work, const TrainingRun& run) {
  Machine share = node;
  for (swap::ReplayCosts::Disk& disk : share.costs.disks) {
    disk.rates = scaled(disk.rates, 1.0 / run.ranks_per_node);
    disk.endurance = disk.endurance / run.ranks_per_node;
  }
  set_use(share.costs, step.trace, work.seconds());
  return share;
}

namespace {

struct Alternative {
  std::string what;
  std::function<void(Config&, Machine&)> change;
};

/// `host_budget`: of a node, as planned.
std::vector<Alternative> alternatives(const Config& config, const Machine& node, ByteCount host_budget) {
  std::vector<Alternative> all = {
      {"disks twice as fast",
       [](Config&, Machine& machine) {
         for (auto& disk : machine.costs.disks) disk.rates = scaled(disk.rates, 2);
       }},
      {"devices twice as fast", [](Config&, Machine& machine) { machine.device.flops *= 2; }},
      {"updates twice as fast",
       [](Config&, Machine& machine) {
         machine.update *= 2;
         machine.device.update *= 2;
       }},
      {"25 % more host budget", [=](Config& changed, Machine&) {
         changed.penstock.host_budget = ByteCount(host_budget.value() / 4 * 5);
         changed.penstock.node_budgets.clear();
       }}};
  if (node.device.host_copy > 0) {
    all.push_back({"copies to and from devices twice as fast",
                   [](Config&, Machine& machine) { machine.device.host_copy *= 2; }});
  }
  if (node.device.link > 0)
    all.push_back({"links twice as fast", [](Config&, Machine& machine) { machine.device.link *= 2; }});
  if (config.dtype != DType::fp16 && !config.penstock.update_in_backward && !config.penstock.endurance_cap) {
    all.push_back({std::string("update_in_backward") + (config.gradient_clipping > 0 ? ", no clipping" : ""),
                   [](Config& changed, Machine&) {
                     changed.gradient_clipping = 0;
                     changed.penstock.update_in_backward = true;
                   }});
  }
  if (config.dtype == DType::fp32) return all;
  using enum cpu_adam::StateFormat;
  for (const cpu_adam::StateFormat format : {split, split_bf16, split_q8}) {
    if (format == config.penstock.state_format) continue;
    all.push_back(
        {"state_format " + std::string(to_string(format)) + (format == split ? "" : ", rounded moments"),
         [=](Config& changed, Machine&) { changed.penstock.state_format = format; }});
  }
  return all;
}

/// `memory`: what is there; 0: not known.
Result<void> check_memory(const std::string& whose, ByteCount planned, ByteCount memory, const char* advice) {
  if (memory.is_zero() || planned <= memory) return ok();
  return Error(ErrorCode::budget_too_small, "simulate_model")
      .object(whose)
      .reason("the plan needs more memory than the machine has")
      .wanted(planned)
      .got(memory)
      .advice(advice);
}

Result<void> check_fits(const MemoryPlan& plan, const Machine& node, const TrainingRun& run) {
  const bool has_device = run.device_memory == tiers::DeviceMemory::separate;
  const ByteCount to_pages = plan.host_allocated() - plan.host_budget,
                  beside = to_pages + (has_device ? ByteCount() : plan.device_budget);
  PENSTOCK_TRY(
      check_memory("the host memory of " + std::to_string(run.ranks_per_node) + " ranks",
                   plan.host_of_machine + beside * run.ranks_per_node, node.memory,
                   "lower penstock.host_budget if it is set, offload more to nvme, or use more nodes"));
  if (!has_device) return ok();
  return check_memory("the memory of a device", plan.device_budget, node.device.memory,
                      "lower penstock.device_budget or device_states if they are set, offload more, or use "
                      "smaller units");
}

/// Of a rank that keeps parameters and gradients on its device: nothing is replayed, and the update runs after the
/// backward.
Simulation on_device(const PhaseSeconds& phases, std::size_t disks) {
  swap::ReplayedRound step{.seconds = phases.forward + phases.backward + phases.update,
                           .used = phases.forward + phases.backward,
                           .waited_for_update = phases.update,
                           .update = phases.update,
                           .update_used = phases.update};
  step.disks.resize(disks);
  return {.first = step, .steady = step, .steps = 1, .settled = true, .changes = {}};
}

/// What a run is told of its drives: their parts of the bytes, and their rates unless the machine says what is known of
/// these. A configuration for another number of drives says nothing.
void set_known_of_disks(Machine& machine, const Config& config) {
  auto& disks = machine.costs.disks;
  const auto& [weights, limits] = std::tie(config.penstock.path_weights, config.penstock.path_limits);
  if (weights.size() == disks.size()) {
    for (std::size_t i = 0; i < disks.size(); ++i) disks[i].weight = weights[i];
  }
  const auto is_known = [](const auto& disk) { return disk.eviction != swap::TransferCosts(); };
  if (limits.size() != disks.size() || std::any_of(disks.begin(), disks.end(), is_known)) return;
  for (std::size_t i = 0; i < disks.size(); ++i) disks[i].eviction = swap::costs_at(limits[i]);
}

/// The replay has the copies of an update beside those of the next forward, each as if it were alone on the link, which
/// they share.
void share_link(swap::ReplayedRound& step, const StepWork& work, bool update_in_backward) {
  const double copied = work.forward.copied.seconds() + work.update.copied.seconds() +
                        (update_in_backward ? work.backward.copied.seconds() : 0),
               beside = step.seconds - (update_in_backward ? 0 : work.backward.seconds()),
               missing = std::max(0.0, copied - beside);
  step.seconds += missing;
  step.waited_for_update += missing;
}

/// All micro-batches.
Result<ModelSimulation> replay_once(const Config& config, const ModelLayout& model, const Machine& node,
                                    const TrainingRun& run, std::uint32_t steps, bool bytes_settle) {
  PENSTOCK_TRY_ASSIGN(const MemoryPlan plan, plan_memory(config, model, run.ranks, run.ranks_per_node,
                                                         run.device_memory, run.local_rank));
  PENSTOCK_TRY(check_fits(plan, node, run));
  ModelSimulation once;
  PENSTOCK_TRY_ASSIGN(once.step, plan_step(config, model, plan, {.micro_batches = run.micro_batches}));
  once.step.options.steps = steps;
  once.step.options.bytes_settle = bytes_settle;
  PENSTOCK_TRY_ASSIGN(once.work, step_work(node, model, once.step, run));
  once.share = share_of(node, once.step, once.work, run);
  set_known_of_disks(once.share, config);
  const swap::AccessTrace& trace = once.step.trace;
  if (std::all_of(trace.uses.begin(), trace.uses.end(),
                  [&](const auto& use) { return is_update(trace, use); })) {
    once.simulation = on_device(once.work.seconds(), node.costs.disks.size());
    return once;
  }
  PENSTOCK_TRY_ASSIGN(once.simulation, simulate_steps(trace, once.share, once.step.options));
  share_link(once.simulation.steady, once.work, config.penstock.update_in_backward);
  return once;
}

double extrapolated(double few, double more, double times) {
  return std::max(0.0, more + (more - few) * times);
}
ByteCount extrapolated(ByteCount few, ByteCount more, double times) {
  const auto of = [](ByteCount bytes) { return static_cast<double>(bytes.value()); };
  return ByteCount(static_cast<std::uint64_t>(extrapolated(of(few), of(more), times)));
}

StepWork::Phase extrapolated(const StepWork::Phase& few, const StepWork::Phase& more, double times) {
  StepWork::Phase result = more;
  for (const auto resource :
       {&StepWork::Phase::operations, &StepWork::Phase::gathered, &StepWork::Phase::copied})
    (result.*resource).amount = extrapolated((few.*resource).amount, (more.*resource).amount, times);
  return result;
}

/// `more` has more micro-batches than `few`, and the result has `times` as many as these beyond it: each takes as much.
swap::ReplayedRound extrapolated(const swap::ReplayedRound& few, const swap::ReplayedRound& more,
                                 double times) {
  swap::ReplayedRound result = more;
  for (const auto member :
       {&swap::ReplayedRound::seconds, &swap::ReplayedRound::used, &swap::ReplayedRound::waited_for_loads,
        &swap::ReplayedRound::waited_for_room, &swap::ReplayedRound::waited_for_update,
        &swap::ReplayedRound::update, &swap::ReplayedRound::update_used})
    result.*member = extrapolated(few.*member, more.*member, times);
  for (const auto member : {&swap::ReplayedRound::read, &swap::ReplayedRound::written})
    result.*member = extrapolated(few.*member, more.*member, times);
  for (std::size_t i = 0; i < more.by_purpose.size(); ++i) {
    const auto &a = few.by_purpose[i], &b = more.by_purpose[i];
    result.by_purpose[i] = {extrapolated(a.read, b.read, times), extrapolated(a.written, b.written, times)};
  }
  for (std::size_t i = 0; i < more.disks.size(); ++i) {
    const auto &a = few.disks[i], &b = more.disks[i];
    result.disks[i] = {extrapolated(a.read, b.read, times), extrapolated(a.written, b.written, times),
                       extrapolated(a.busy, b.busy, times)};
  }
  return result;
}

}  // namespace

Result<ModelSimulation> simulate_model_steps(const Config& config, const ModelLayout& model,
                                             const Machine& node, const TrainingRun& run, std::uint32_t steps,
                                             bool bytes_settle) {
  if (run.micro_batches <= most_micro_batches)
    return replay_once(config, model, node, run, steps, bytes_settle);
  TrainingRun part = run;
  part.micro_batches = most_micro_batches / 2;
  PENSTOCK_TRY_ASSIGN(const ModelSimulation few, replay_once(config, model, node, part, steps, bytes_settle));
  part.micro_batches = most_micro_batches;
  PENSTOCK_TRY_ASSIGN(ModelSimulation more, replay_once(config, model, node, part, steps, bytes_settle));
  const double times = static_cast<double>(run.micro_batches - most_micro_batches) / (most_micro_batches / 2);
  for (const auto round : {&Simulation::first, &Simulation::steady})
    more.simulation.*round = extrapolated(few.simulation.*round, more.simulation.*round, times);
  more.work.forward = extrapolated(few.work.forward, more.work.forward, times);
  more.work.backward = extrapolated(few.work.backward, more.work.backward, times);
  return more;
}

namespace {

/// The least: as much as possible of both at once, then the rest.
double seconds_of(ByteCount read, ByteCount written, const swap::DiskRates& rates) {
  const auto in = static_cast<double>(read.value()), out = static_cast<double>(written.value());
  const double both = std::min(in, out);
  return 2 * both / rates.mixed + (in - both) / rates.read + (out - both) / rates.write;
}

}  // namespace

std::vector<Work> ModelSimulation::resources() const {
  std::vector<Work> all = work.resources();
  const auto& disks = simulation.steady.disks;
  for (std::size_t i = 0; i < disks.size(); ++i) {
    const auto& [read, written, busy] = disks[i];
    if ((read + written).is_zero()) continue;
    const auto bytes = static_cast<double>((read + written).value());
    all.push_back({.what = disks.size() == 1 ? "disk" : "disk " + std::to_string(i + 1),
                   .amount = bytes,
                   .rate = bytes / seconds_of(read, written, share.costs.disks[i].rates)});
  }
  return all;
}

Result<ModelSimulation> simulate_model(const Config& config, const ModelLayout& model, const Machine& node,
                                       const TrainingRun& run, std::uint32_t steps, std::uint32_t threads) {
  PENSTOCK_TRY_ASSIGN(ModelSimulation result,
                      simulate_model_steps(config, model, node, run, steps, /*bytes_settle=*/true));
  PENSTOCK_TRY_ASSIGN(const MemoryPlan plan, plan_memory(config, model, run.ranks, run.ranks_per_node,
                                                         run.device_memory, run.local_rank));
  // One host_budget, of which the rank has as much as of its node's now.
  const ByteCount host_budget = plan.host_budget * run.ranks_per_node;
  const std::vector<Alternative> changes = alternatives(config, node, host_budget);
  const auto seconds = in_parallel(changes.size(), threads, [&](std::size_t i) -> std::optional<double> {
    Config changed = config;
    Machine other = node;
    changes[i].change(changed, other);
    const auto once = simulate_model_steps(changed, model, other, run, steps, /*bytes_settle=*/false);
    return once ? std::optional(once->simulation.steady.seconds) : std::nullopt;
  });
  for (std::size_t i = 0; i < changes.size(); ++i) {
    // One that cannot run helps nobody.
    if (seconds[i]) result.simulation.note_change(changes[i].what, *seconds[i]);
  }
  return result;
}

}  // namespace penstock::zero::simulate
