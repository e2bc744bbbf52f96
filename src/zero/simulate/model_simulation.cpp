#include "zero/simulate/model_simulation.hpp"

#include <algorithm>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::simulate {

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

/// What the update of a step uses in host memory.
struct UpdateBytes {
  double states = 0, read = 0, written = 0;  // the last two of gradients and parameters
};

UpdateBytes update_bytes(const swap::AccessTrace& trace) {
  UpdateBytes bytes;
  for (const auto& use : trace.uses) {
    if (!is_update(trace, use)) continue;
    const auto& tensor = trace.tensors[use.tensor];
    const auto size = static_cast<double>(tensor.size.value());
    if (tensor.purpose == tiers::Purpose::optimizer_tile) {
      bytes.states += size;
      continue;
    }
    if (use.access != swap::Access::overwrite) bytes.read += size;
    if (use.access != swap::Access::read) bytes.written += size;
  }
  return bytes;
}

/// Bytes of the checkpoints that leave the device in a step, and come back.
double checkpoint_bytes(const swap::AccessTrace& trace) {
  double bytes = 0;
  for (const auto& use : trace.uses) {
    const auto& tensor = trace.tensors[use.tensor];
    if (tensor.purpose == tiers::Purpose::checkpoint && use.access == swap::Access::read)
      bytes += static_cast<double>(tensor.size.value());
  }
  return bytes;
}

/// Seconds of an update without waits. `part`: of the processors, that the rank has.
Result<double> update_seconds(const Machine& node, double part, const PlannedStep& step) {
  const UpdateBytes bytes = update_bytes(step.trace);
  if (bytes.states == 0) return 0.0;
  const double kept = std::min(static_cast<double>(step.kept_states.value()), bytes.states),
               others = bytes.states - kept;
  double by_cpu = 0;  // of all tiles that the device does not keep
  if (step.update.by_cpu) {
    if (node.update == 0) return not_given("update");
    by_cpu = others / (node.update * part);
  }
  if (step.update.device_slots == 0) return by_cpu;
  const bool is_offloaded = bytes.read > 0;  // gradients come from host memory
  if (is_offloaded && node.device.host_copy == 0) return not_given("device.host_copy");
  // Gradients and parameters of all that the device updates cross the link, of other tiles than it keeps states too.
  const double of_flats = std::max(bytes.read, bytes.written) / bytes.states;
  struct Resource {
    double kept, others;  // seconds of what the device keeps, and of all others
  };
  const Resource link{seconds_at(kept * of_flats, node.device.host_copy),
                      seconds_at(others * (1 + of_flats), node.device.host_copy)},
      kernels{seconds_at(kept, node.device.update), seconds_at(others, node.device.update)};
  double longest = 0;
  if (step.update.split == UpdateSplit::automatic) {
    // The others are shared so that both processors end at one time, unless what the device keeps takes it longer.
    for (const Resource& one : {link, kernels}) {
      const double shared = one.others > 0 ? (1 + one.kept / one.others) / (1 / by_cpu + 1 / one.others) : 0;
      longest = std::max({longest, one.kept, shared});
    }
    return longest;
  }
  const double share =
      others > 0 ? std::min(1.0, static_cast<double>(step.update.streamed.value()) / others) : 0;
  for (const Resource& one : {link, kernels}) longest = std::max(longest, one.kept + share * one.others);
  return std::max((1 - share) * by_cpu, longest);
}

}  // namespace

double model_operations(const ModelLayout& model, const TrainingRun& run) {
  return 6.0 * static_cast<double>(model.element_count().value()) * static_cast<double>(run.tokens) *
         run.micro_batches;
}

Result<Machine> share_of(const Machine& node, const ModelLayout& model, const PlannedStep& step,
                         const TrainingRun& run) {
  if (run.tokens == 0)
    return Error::invalid_argument("simulate").object("tokens").wanted("1 or more").got(std::uint64_t{0});
  if (node.device.flops == 0) return not_given("device.flops");
  if (std::all_of(step.trace.uses.begin(), step.trace.uses.end(),
                  [&](const auto& use) { return is_update(step.trace, use); })) {
    return Error::unsupported("simulate")
        .reason("the rank keeps parameters and gradients on its device, so that no use of them is simulated")
        .wanted("offload_param or offload_optimizer on cpu or nvme")
        .advice("a step takes what the device needs: 6 operations for each token and parameter");
  }
  Machine share = node;
  const bool has_link = run.device_memory == tiers::DeviceMemory::separate;
  const double host_copy = has_link ? node.device.host_copy : 0;  // host memory is not copied to itself
  const double parts = run.ranks_per_node;
  for (swap::ReplayCosts::Disk& disk : share.costs.disks) {
    disk.rates = scaled(disk.rates, 1 / parts);
    disk.endurance = disk.endurance / run.ranks_per_node;
  }

  const auto parameters = static_cast<double>(model.element_count().value());
  const double ranks = run.ranks, forward = model_operations(model, run) / 3;
  // In the dtype of gathers and reductions. What is at home on the device is gathered once a pass.
  const double shards =
      static_cast<double>(size_of(run.dtype).value()) * parameters / ranks * run.micro_batches;
  const GatheredBytes from_host = gathered_bytes(step.trace);
  const bool gathers_from_host = from_host.forward + from_host.backward > 0;
  const double in_forward = gathers_from_host ? from_host.forward : shards,
               in_backward = gathers_from_host ? from_host.backward : shards;
  const double checkpoints = checkpoint_bytes(step.trace);
  const auto longest = [&](double operations, double gathered, double copied) {
    return std::max({seconds_at(operations, node.device.flops),
                     seconds_at(gathered * (ranks - 1), node.device.link), seconds_at(copied, host_copy)});
  };
  PENSTOCK_TRY_ASSIGN(const double update, update_seconds(node, 1 / parts, step));
  set_use(share.costs, step.trace,
          {.forward = longest(forward, in_forward,
                              std::max(from_host.forward, checkpoints)),  // these come, those leave
           .backward = longest(forward * (2 + run.repeated_forward), in_backward + shards,
                               from_host.backward + from_host.gradients + checkpoints),
           .update = update});
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
  const ByteCount host = plan.host_allocated() + (has_device ? ByteCount() : plan.device_budget);
  PENSTOCK_TRY(check_memory(
      "the host memory of " + std::to_string(run.ranks_per_node) + " ranks", host * run.ranks_per_node,
      node.memory, "lower penstock.host_budget if it is set, offload more to nvme, or use more nodes"));
  if (!has_device) return ok();
  return check_memory("the memory of a device", plan.device_budget, node.device.memory,
                      "lower penstock.device_budget or device_states if they are set, offload more, or use "
                      "smaller units");
}

/// Without changes, all micro-batches.
Result<ModelSimulation> replay_once(const Config& config, const ModelLayout& model, const Machine& node,
                                    const TrainingRun& run, std::uint32_t steps, bool bytes_settle) {
  PENSTOCK_TRY_ASSIGN(const MemoryPlan plan,
                      plan_memory(config, model, run.ranks, run.ranks_per_node, run.device_memory));
  PENSTOCK_TRY(check_fits(plan, node, run));
  ModelSimulation once;
  PENSTOCK_TRY_ASSIGN(once.step, plan_step(config, model, plan, {.micro_batches = run.micro_batches}));
  once.step.options.steps = steps;
  once.step.options.bytes_settle = bytes_settle;
  PENSTOCK_TRY_ASSIGN(once.share, share_of(node, model, once.step, run));
  PENSTOCK_TRY_ASSIGN(once.simulation, simulate_steps(once.step.trace, once.share, once.step.options));
  return once;
}

double extrapolated(double few, double more, double times) {
  return std::max(0.0, more + (more - few) * times);
}
ByteCount extrapolated(ByteCount few, ByteCount more, double times) {
  const auto of = [](ByteCount bytes) { return static_cast<double>(bytes.value()); };
  return ByteCount(static_cast<std::uint64_t>(extrapolated(of(few), of(more), times)));
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
  for (std::size_t i = 0; i < more.disks.size(); ++i) {
    const auto &a = few.disks[i], &b = more.disks[i];
    result.disks[i] = {extrapolated(a.read, b.read, times), extrapolated(a.written, b.written, times),
                       extrapolated(a.busy, b.busy, times)};
  }
  return result;
}

/// Of a step with more micro-batches than most_micro_batches, replays so many and half of them.
Result<ModelSimulation> simulate_once(const Config& config, const ModelLayout& model, const Machine& node,
                                      const TrainingRun& run, std::uint32_t steps, bool bytes_settle) {
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
  return more;
}

}  // namespace

Result<ModelSimulation> simulate_model(const Config& config, const ModelLayout& model, const Machine& node,
                                       const TrainingRun& run, std::uint32_t steps) {
  PENSTOCK_TRY_ASSIGN(ModelSimulation result,
                      simulate_once(config, model, node, run, steps, /*bytes_settle=*/true));
  PENSTOCK_TRY_ASSIGN(const MemoryPlan plan,
                      plan_memory(config, model, run.ranks, run.ranks_per_node, run.device_memory));
  const ByteCount host_budget = plan.host_budget * run.ranks_per_node;
  for (const auto& [what, change] : alternatives(config, node, host_budget)) {
    Config changed = config;
    Machine other = node;
    change(changed, other);
    // One that cannot run helps nobody.
    if (const auto once = simulate_once(changed, model, other, run, steps, /*bytes_settle=*/false))
      result.simulation.note_change(what, once->simulation.steady.seconds);
  }
  return result;
}

}  // namespace penstock::zero::simulate
