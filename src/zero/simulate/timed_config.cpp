#include "zero/simulate/timed_config.hpp"

#include "zero/simulate/in_parallel.hpp"

#include <string>

namespace penstock::zero::simulate {

namespace {

constexpr const char* operation = "penstock estimate";
/// Of a simulation, at least; more of small models, and until the seconds settle.
constexpr std::uint32_t steps_least = 2;

struct Prepared {
  TrainingRun run;
  std::optional<estimate::Recomputation> recomputation;
};
Result<Prepared> prepare(const Config& config, const ModelLayout& layout, const TimedRun& run) {
  Prepared prepared{.run = {.ranks = run.shape.ranks(),
                            .ranks_per_node = run.shape.ranks_per_node,
                            .micro_batches = config.gradient_accumulation_steps,
                            .tokens = run.tokens,
                            .dtype = config.dtype,
                            .used_by_token = run.used_by_token,
                            .device_memory = run.shape.device_memory},
                    .recomputation = {}};
  if (!run.activations) return prepared;
  const auto& [sizes, blocks, memory] = *run.activations;
  PENSTOCK_TRY_ASSIGN(const auto estimate, estimate_plan(config, layout, run.shape));
  PENSTOCK_TRY_ASSIGN(prepared.recomputation,
                      plan_recomputation(sizes, blocks, memory, estimate.per_rank(tiers::Tier::device)));
  prepared.run.repeated_forward = prepared.recomputation->repeated();
  return prepared;
}

}  // namespace

Result<void> check_timed_run(const TimedRun& run, const Config& config) {
  const std::size_t disks = run.machine.costs.disks.size();
  const auto& directories =
      config.is_durable() ? config.penstock.durable_directories : config.offload_param.nvme_paths;
  if (directories.size() != disks) {
    return Error::invalid_argument(operation)
        .object(config.is_durable() ? "penstock.durable_directory" : "--path")
        .reason("each disk of --machine has one directory, in the same order")
        .wanted(std::to_string(disks) + (disks == 1 ? " directory" : " directories"))
        .got(std::uint64_t{directories.size()})
        .advice(std::string(config.is_durable() ? "name a directory on" : "repeat --path for") +
                " each disk, or describe the disks of these directories");
  }
  const Machine::Device& device = run.machine.device;
  if (run.shape.device_memory == tiers::DeviceMemory::separate && device.host_copy == 0) {
    return Error::invalid_argument(operation)
        .object("device.host_copy")
        .reason(
            "a rate is needed that the machine file does not give: what is offloaded would come in no time")
        .wanted("bytes a second between host memory and a device")
        .got("nothing")
        .where(run.machine.file)
        .advice("add it, see docs/simulation.md, or --device-memory host for a run on the CPU");
  }
  if (run.activations && !device.memory.is_zero() && run.activations->memory > device.memory) {
    return Error::invalid_argument(operation)
        .object("--memory-device")
        .reason("the machine's device has less memory")
        .wanted("at most " + to_exact_string(device.memory))
        .got(run.activations->memory);
  }
  return ok();
}

Result<TimedConfig> time_config(const Config& config, const ModelLayout& layout, const TimedRun& run) {
  PENSTOCK_TRY_ASSIGN(const Prepared prepared, prepare(config, layout, run));
  PENSTOCK_TRY_ASSIGN(ModelSimulation model,
                      simulate_model_steps(config, layout, run.machine, prepared.run, steps_least,
                                           /*bytes_settle=*/false));
  return TimedConfig{std::move(model), prepared.recomputation};
}

Result<TimedConfig> time_changes(const Config& config, const ModelLayout& layout, const TimedRun& run) {
  PENSTOCK_TRY_ASSIGN(const Prepared prepared, prepare(config, layout, run));
  PENSTOCK_TRY_ASSIGN(ModelSimulation model, simulate_model(config, layout, run.machine, prepared.run,
                                                            steps_least, simulation_threads()));
  return TimedConfig{std::move(model), prepared.recomputation};
}

}  // namespace penstock::zero::simulate
