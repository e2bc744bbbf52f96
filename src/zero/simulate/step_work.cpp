#include "zero/simulate/step_work.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero::simulate {

namespace {

Error not_given(const Machine& machine, const char* key) {
  return Error::invalid_argument("simulate")
      .object(key)
      .reason("a rate is needed that the machine file does not give")
      .where(machine.file)
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

/// The part of the states that the device does not keep, `others` bytes, that it updates while the processors, at
/// `cpu` bytes a second, update the rest: both end at one time, unless what the device keeps takes it longer. `of`: a
/// resource of the device, whose amount is that of what it keeps; `each`: what a byte of the others adds to it.
double shared_part(double others, double cpu, const Work& of, double each) {
  if (others == 0) return 0;
  if (of.rate == 0) return 1;
  const double by_cpu = others / cpu, by_device = others * each / of.rate;
  const double until = (1 + of.seconds() / by_device) / (1 / by_cpu + 1 / by_device);
  return 1 - std::min(1.0, until / by_cpu);
}

Result<StepWork::Update> update_work(const Machine& node, double part, const PlannedStep& step) {
  StepWork::Update work{.by_processors = {.what = "update by the processors"},
                        .copied = {.what = "copies for the device's update"},
                        .by_device = {.what = "update by the device"}};
  const UpdateBytes bytes = update_bytes(step.trace);
  if (bytes.states == 0) return work;
  if (step.update.by_cpu && node.update == 0) return not_given(node, "update");
  work.by_processors.rate = node.update * part;
  const double kept = std::min(static_cast<double>(step.kept_states.value()), bytes.states),
               others = bytes.states - kept;
  work.by_processors.amount = step.update.by_cpu ? others : 0;
  if (step.update.device_slots == 0) return work;
  const bool is_offloaded = bytes.read > 0;  // gradients come from host memory
  if (is_offloaded && node.device.host_copy == 0) return not_given(node, "device.host_copy");
  // Gradients and parameters of all that the device updates cross the link, of other tiles than it keeps states too.
  const double of_flats = std::max(bytes.read, bytes.written) / bytes.states;
  work.copied.amount = kept * of_flats;
  work.copied.rate = node.device.host_copy;
  work.by_device.amount = kept;
  work.by_device.rate = node.device.update;
  double share = 0;
  if (step.update.split == UpdateSplit::automatic) {
    const double cpu = work.by_processors.rate;
    share = std::min(shared_part(others, cpu, work.copied, 1 + of_flats),
                     shared_part(others, cpu, work.by_device, 1));
  } else if (others > 0) {
    share = std::min(1.0, static_cast<double>(step.update.streamed.value()) / others);
  }
  work.by_processors.amount *= 1 - share;
  work.copied.amount += share * others * (1 + of_flats);
  work.by_device.amount += share * others;
  return work;
}

/// Of one resource.
Work sum_of(const char* what, std::initializer_list<Work> works) {
  Work sum = *works.begin();
  sum.what = what;
  sum.amount = 0;
  for (const Work& one : works) sum.amount += one.amount;
  return sum;
}

}  // namespace

double StepWork::Phase::seconds() const {
  return std::max({operations.seconds(), gathered.seconds(), copied.seconds()});
}

double StepWork::Update::seconds() const {
  return std::max({by_processors.seconds(), copied.seconds(), by_device.seconds()});
}

PhaseSeconds StepWork::seconds() const {
  return {.forward = forward.seconds(), .backward = backward.seconds(), .update = update.seconds()};
}

std::vector<Work> StepWork::resources() const {
  std::vector<Work> all = {
      sum_of("operations", {forward.operations, backward.operations}),
      sum_of("gathers and reductions between ranks", {forward.gathered, backward.gathered}),
      sum_of("copies between host and device", {forward.copied, backward.copied, update.copied}),
      update.by_processors, update.by_device};
  std::erase_if(all, [](const Work& one) { return one.seconds() == 0; });
  return all;
}

double model_operations(const ModelLayout& model, const TrainingRun& run) {
  const ElementCount used = run.used_by_token.is_zero() ? model.element_count() : run.used_by_token;
  return 6.0 * static_cast<double>(used.value()) * static_cast<double>(run.tokens) * run.micro_batches;
}

Result<StepWork> step_work(const Machine& node, const ModelLayout& model, const PlannedStep& step,
                           const TrainingRun& run) {
  if (run.tokens == 0)
    return Error::invalid_argument("simulate").object("tokens").wanted("1 or more").got(std::uint64_t{0});
  if (node.device.flops == 0) return not_given(node, "device.flops");
  const bool has_link = run.device_memory == tiers::DeviceMemory::separate;
  const double host_copy = has_link ? node.device.host_copy : 0;  // host memory is not copied to itself
  const auto parameters = static_cast<double>(model.element_count().value());
  const double ranks = run.ranks, forward = model_operations(model, run) / 3;
  // In the dtype of gathers and reductions. What is at home on the device is gathered once a pass.
  const double shards =
      static_cast<double>(size_of(run.dtype).value()) * parameters / ranks * run.micro_batches;
  const GatheredBytes from_host = gathered_bytes(step.trace);
  const bool gathers_from_host = from_host.forward + from_host.backward > 0;
  const double in_forward = gathers_from_host     ? from_host.forward
                            : step.stays_gathered ? shards / run.micro_batches
                                                  : shards,
               in_backward = gathers_from_host     ? from_host.backward
                             : step.stays_gathered ? 0
                                                   : shards;
  const double checkpoints = checkpoint_bytes(step.trace);
  const auto phase = [&](double operations, double gathered, double copied) {
    return StepWork::Phase{
        .operations = {.amount = operations, .rate = node.device.flops, .in_operations = true},
        .gathered = {.amount = gathered * (ranks - 1), .rate = node.device.link},
        .copied = {.amount = copied, .rate = host_copy}};
  };
  StepWork work{.forward = phase(forward, in_forward,
                                 std::max(from_host.forward, checkpoints)),  // these come, those leave
                .backward = phase(forward * (2 + run.repeated_forward), in_backward + shards,
                                  from_host.backward + from_host.gradients + checkpoints),
                .update = {}};
  PENSTOCK_TRY_ASSIGN(work.update, update_work(node, 1.0 / run.ranks_per_node, step));
  return work;
}

}  // namespace penstock::zero::simulate
