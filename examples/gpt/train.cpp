// gpt_train: trains the GPT with Penstock. ds_config.json configures where parameters, gradients and optimizer states
// are kept.
#include "gpt/disk_limit.hpp"
#include "gpt/memory_bound.hpp"
#include "gpt/rank_group.hpp"
#include "gpt/run_training.hpp"
#include "gpt/stop_signal.hpp"
#include "gpt/trace_report.hpp"
#include "gpt/training_arguments.hpp"
#include "gpt/training_report.hpp"
#include "gpt/training_states.hpp"

#include "measure/run_main.hpp"

#include <penstock/zero/launch/launch.hpp>

#include <csignal>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace gpt {
namespace {

using namespace penstock;  // NOLINT: an example reads better so

struct Arguments : TrainingArguments {
  std::vector<std::filesystem::path> nvme_paths;
  std::optional<std::filesystem::path> trace, uses;
  bool check = false;
  std::optional<std::uint32_t> lora_rank;
  std::optional<float> lora_alpha;  // default: the rank
  TrainingStates::Paths states;
  std::uint32_t commit_every = 10;  // steps, with penstock.durable_directory
  zero::LaunchOptions launch;
  std::string master;
  bool mpi = false;
  bool ranks_are_given = false;
};

/// The plan of a rank: with node_budgets, of the one that has the least host memory. Refuses a run that does not fit
/// into the machine's memory.
Result<zero::MemoryPlan> plan_run(const Arguments& arguments, const zero::RankIdentity& identity,
                                  const zero::Config& config) {
  const std::uint32_t ranks = identity.local_ranks;
  if (config.optimizer.type == cpu_adam::Optimizer::muon &&
      ModelDescription(arguments.model).blocks_are_cut()) {
    return Error::invalid_config("gpt_train")
        .object("penstock.unit_elements_max")
        .reason("Muon updates whole matrices, and these are cut into row blocks")
        .got(std::to_string(config.penstock.unit_elements_max.value()))
        .advice("leave it out");
  }
  const auto memory = arguments.cuda ? tiers::DeviceMemory::separate : tiers::DeviceMemory::host;
  PENSTOCK_TRY_ASSIGN(
      auto plan, plan_memory(config, layout_of(arguments.model, arguments.training, config.optimizer.type),
                             identity.ranks, ranks, memory));
  PENSTOCK_TRY(check_memory(
      memory_bound(plan, plan.host_of_machine, arguments.model, arguments.training, ranks, !arguments.cuda),
      ranks));
  return plan;
}

std::vector<std::string> unit_names(const ModelConfig& model) {
  std::vector<std::string> names;
  const ModelDescription description(model);
  for (const UnitDescription& unit : description.units()) names.push_back(unit.name);
  return names;
}

/// Joins the other ranks: threads of this process, unless a launcher or options say that this is one of several.
/// `attempt` counts the groups of this process.
Result<RankGroup> join(const Arguments& arguments, const zero::Launch& launch, std::uint16_t attempt) {
  if (launch.ranks == 1) return RankGroup::of_threads(arguments.training.ranks);
  PENSTOCK_TRY_ASSIGN(auto options, zero::ProcessGroupOptions::of(launch));
  options.carrier = arguments.mpi ? zero::Carrier::mpi : zero::Carrier::tcp;
  options.rank_0.port = static_cast<std::uint16_t>(options.rank_0.port + attempt);
  options.notice = [rank = launch.rank](const std::string& line) {
    std::fprintf(stderr, "note: rank %u %s\n", rank, line.c_str());
  };
  return RankGroup::of_processes(options);
}

/// Takes the command line, the launcher's word and the configuration together.
Result<zero::Launch> find_place(Arguments& arguments) {
  if (!arguments.master.empty()) {
    PENSTOCK_TRY_ASSIGN(arguments.launch.master, zero::Endpoint::parse(arguments.master));
  }
  PENSTOCK_TRY_ASSIGN(auto launch, zero::find_launch(arguments.launch));
  if (launch.ranks == 1) {
    const bool is_told = launch.source.find("no launcher") == std::string::npos;
    if (is_told && !arguments.ranks_are_given) arguments.training.ranks = 1;
    if (!arguments.mpi && arguments.master.empty()) return launch;
    return Error::invalid_argument("gpt_train")
        .object(arguments.mpi ? "--mpi" : "--master")
        .reason("it is for several processes, and this is the only one: " + launch.source)
        .advice("start it by mpirun, torchrun or srun, or with --rank and --world");
  }
  std::fprintf(stderr, "note: rank %u of %u, as told by %s\n", launch.rank, launch.ranks,
               launch.source.c_str());
  if (arguments.ranks_are_given) {
    return Error::invalid_argument("gpt_train")
        .object("--ranks")
        .reason("it counts threads of one process, and this is one of several processes")
        .where(launch.source)
        .advice("leave --ranks out, or start one process");
  }
  if (arguments.states.save) {
    return Error::invalid_argument("gpt_train")
        .object("--save")
        .reason(
            "the ranks that write to a file are threads of one process, and this is one of several processes")
        .where(launch.source)
        .advice("leave --save out, or start one process with --ranks");
  }
  arguments.training.ranks = launch.ranks;
  if (arguments.check && launch.master && launch.master->port > 65533) {
    return Error::invalid_argument("gpt_train")
        .object("MASTER_PORT")
        .wanted("below 65534: --check uses the next two ports")
        .got(launch.master->port);
  }
  return launch;
}

/// What all processes must be told alike, beside the configuration; as ProcessGroup::agree() takes it.
std::string text_of(const Arguments& arguments) {
  std::string text = "--steps\t" + std::to_string(arguments.training.steps) + "\n--seed\t" +
                     std::to_string(arguments.model.seed);
  if (const auto& lora = arguments.model.lora) {
    text += "\n--lora\t" + std::to_string(lora->rank) + "\n--lora-alpha\t" + std::to_string(lora->alpha);
  }
  for (const auto& [option, given] : {std::pair("--check", arguments.check),
                                      std::pair("--accumulate-by-layer", arguments.training.layer_by_layer)})
    text.append("\n").append(option).append("\t").append(given ? "given" : "not given");
  return text + "\n";
}

struct Failure {
  Error error;
  const char* what;
};

/// Trains as a rank, or the ranks, of `group`. Returns the exit status.
std::variant<int, Failure> run(Arguments effective, const zero::Launch& launch, const RankGroup& group) {
  const bool leads = launch.rank == 0;
  auto config = zero::Config::from_file(effective.config, effective.training.ranks);
  if (!config) return Failure{config.error(), "cannot use the configuration"};
  if (!effective.nvme_paths.empty()) {
    config->offload_param.nvme_paths = config->offload_optimizer.nvme_paths = effective.nvme_paths;
  }
  for (const std::string& note : config->notes) {
    if (leads) std::fprintf(stderr, "note: %s\n", note.c_str());
  }
  const NamedFile files[] = {{"--json", effective.json},
                             {"--trace", effective.trace},
                             {"--uses", effective.uses},
                             {"--save", effective.states.save}};
  if (auto differ = check_different(files); !differ) return Failure{differ.error(), "cannot start"};
  if (auto paths = config->check_paths(); !paths)
    return Failure{paths.error(), "cannot use the swap directory"};
  effective.take(*config);
  if (auto model = effective.model.validate(); !model) return Failure{model.error(), "cannot start"};
  if (auto valid = effective.training.validate(); !valid) return Failure{valid.error(), "cannot start"};
  if (auto same = group.compare(text_of(effective)); !same) return Failure{same.error(), "cannot start"};
  auto plan = plan_run(effective, group.identity(0), *config);
  if (!plan) return Failure{plan.error(), "cannot start"};
  auto text = Text::load(effective.text, effective.model.context);
  if (!text) return Failure{text.error(), "cannot use the text"};

  std::optional<DiskLimit> limit;
  if (leads && !plan->swap_bytes.is_zero()) {
    std::vector<swap::PathOptions> paths = plan->runtime_options(*config, 0).paths;
    for (swap::PathOptions& path : paths) {
      // The run makes a durable directory, in the one above.
      if (!std::filesystem::exists(path.directory))
        path.directory = std::filesystem::absolute(path.directory / "..").lexically_normal();
    }
    auto measured = measure_disk(paths, ByteCount(384 << 20));
    if (!measured) return Failure{measured.error(), "cannot use the swap directory"};
    limit = *measured;
    if (!limit) std::fprintf(stderr, "note: the disk is not measured: too little is free\n");
    auto& limits = config->penstock.path_limits;  // for reports
    if (limit && limits.empty() && config->swap_directories().size() == 1) limits = {limit->mixed};
  }
  std::unique_ptr<TraceReport> trace;
  if (leads && effective.trace) {
    auto created = TraceReport::create(*effective.trace, unit_names(effective.model));
    if (!created) return Failure{created.error(), "cannot write the trace"};
    trace = std::move(*created);
  }
  std::optional<OutputFile> json;
  if (leads && effective.json) {
    auto created = OutputFile::create(*effective.json);
    if (!created) return Failure{created.error(), "cannot write the report"};
    json = std::move(*created);
  }
  std::optional<OutputFile> uses;
  if (leads && effective.uses) {
    auto created = OutputFile::create(*effective.uses);
    if (!created) return Failure{created.error(), "cannot write the uses"};
    uses = std::move(*created);
  }
  auto states = TrainingStates::open(effective.states, effective.model, effective.training);
  if (!states) return Failure{states.error(), "cannot start"};
  const Run trained = run_training({.arguments = effective,
                                    .group = group,
                                    .config = *config,
                                    .text = *text,
                                    .states = *states,
                                    .commit_every = effective.commit_every,
                                    .limit = limit ? &*limit : nullptr,
                                    .trace = trace.get(),
                                    .json = json ? &*json : nullptr,
                                    .uses = uses ? &*uses : nullptr});
  const Result<void> written = trace ? trace->finish() : ok();  // of a failed training too
  if (trained.error) return Failure{*trained.error, "training failed"};
  if (trace) trace->print();
  if (!written) return Failure{written.error(), "cannot write the trace"};
  if (const auto closed = json ? json->close() : ok(); !closed)
    return Failure{closed.error(), "cannot write the report"};
  if (const auto closed = uses ? uses->close() : ok(); !closed)
    return Failure{closed.error(), "cannot write the uses"};
  if (const auto saved = states->saved ? states->saved->finish(trained.progress) : ok(); !saved)
    return Failure{saved.error(), "cannot save the states"};
  states->saved.reset();
  if (trained.signal != 0) return stopped_by(trained.signal);
  if (!effective.check) return 0;

  if (leads) std::printf("\nthe same training with everything in memory\n");
  zero::Config in_memory = *config;
  in_memory.penstock.durable_directories.clear();
  in_memory.offload_optimizer.device = zero::OffloadDevice::cpu;
  if (in_memory.shards_parameters()) in_memory.offload_param.device = zero::OffloadDevice::cpu;
  in_memory.penstock.host_budget = in_memory.penstock.device_budget = ByteCount();
  in_memory.penstock.node_budgets.clear();
  if (auto fits = plan_run(effective, group.identity(0), in_memory); !fits)
    return Failure{fits.error(), "cannot train in memory"};
  const auto again = join(effective, launch, /*attempt=*/1);
  if (!again) return Failure{again.error(), "cannot train in memory"};
  const Run checked = run_training(
      {.arguments = effective, .group = *again, .config = in_memory, .text = *text, .states = *states});
  if (checked.error) return Failure{*checked.error, "training in memory failed"};
  if (checked.signal != 0) return stopped_by(checked.signal);
  const bool equal = checked.digest == trained.digest;
  if (leads) {
    std::printf("\ncheck %s: on disk %s, in memory %s\n", equal ? "passed" : "FAILED", trained.digest.c_str(),
                checked.digest.c_str());
  }
  return equal ? 0 : 1;
}

int run(Arguments arguments) {
  const auto launch = find_place(arguments);
  if (!launch) return fail(launch.error(), "cannot tell the rank of this process");
  // Before all else: a rank that cannot start tells the others.
  const auto group = join(arguments, *launch, /*attempt=*/0);
  if (!group) return fail(group.error(), "cannot join the other ranks");
  note_stop_signals();            // until now they end the process
  std::signal(SIGUSR1, SIG_IGN);  // until a step has ended
  const auto outcome = run(arguments, *launch, *group);
  if (const int* const status = std::get_if<int>(&outcome)) return *status;
  const auto& [error, what] = std::get<Failure>(outcome);
  group->abort(0, error);
  return fail(error, what);
}

void add_state_options(measure::CommandLine& app, Arguments& arguments) {
  app.add_option("--base", arguments.states.base,
                 "begin with the parameters that another training has saved");
  const measure::CommandOption lora = app.add_option(
      "--lora", arguments.lora_rank,
      "freeze the parameters of --base, and train adapters of this rank for the attention's layers");
  app.add_option("--lora-alpha", arguments.lora_alpha,
                 "adapters add alpha / rank times their product; default: the rank")
      .needs(lora);
  app.add_option("--save", arguments.states.save,
                 "write the states of the trained parameters to this file at the end");
  app.add_option("--commit-every", arguments.commit_every,
                 "steps between two commits, with penstock.durable_directory in the configuration; the last "
                 "step, also "
                 "after a signal, is committed too")
      .show_default()
      .range(1u, 1u << 30);
  app.add_option("--resume", arguments.states.resume,
                 "continue a training that has saved its states in this file");
}

void add_launch_options(measure::CommandLine& app, Arguments& arguments) {
  zero::LaunchOptions& launch = arguments.launch;
  app.add_option("--rank", launch.rank,
                 "number of this process among several; default: as torchrun, mpirun or srun say");
  app.add_option("--world", launch.ranks, "number of processes, each of which is a rank");
  app.add_option("--local-rank", launch.local_rank, "number of this process among those of this machine");
  app.add_option("--local-world", launch.local_ranks, "number of processes of this machine");
  app.add_flag("--mpi", arguments.mpi, "move the bytes of collectives by MPI, under mpirun; default: TCP");
  app.add_option("--master", arguments.master,
                 "host and port of rank 0, instead of MASTER_ADDR and MASTER_PORT");
}

int main_body(int argc, char** argv) {
  Arguments arguments;
  measure::CommandLine app("Trains a byte-level GPT with Penstock, with its states in the configured tiers");
  TrainingOptions options(app, arguments);
  app.add_option("--nvme-path", arguments.nvme_paths,
                 "swap directories, instead of those of the configuration")
      .take_all();
  const measure::CommandOption ranks =
      app.add_option("--ranks", arguments.training.ranks, "ranks, as threads").show_default().range(1, 64);
  add_launch_options(app, arguments);
  add_state_options(app, arguments);
  app.add_flag("--accumulate-by-layer", arguments.training.layer_by_layer,
               "run each layer for all micro-batches of a step before the next layer, so that parameters are "
               "gathered once a step; needs activations of all micro-batches");
  app.add_flag(
      "--offload-activations", arguments.training.offload_activations,
      "as --checkpoint-activations, and keep the inputs of blocks in the engine's tiers: on the device, in "
      "host memory or on NVMe, as the budgets permit");
  app.add_option("--trace", arguments.trace,
                 "write a Chrome trace of streams and disks to this file, and print what they waited for");
  app.add_option(
      "--uses", arguments.uses,
      "write the order in which rank 0 uses tensors in host memory, in the second step, to this file, "
      "which penstock simulate and penstock trace read");
  app.add_flag("--check", arguments.check, "train again with everything in memory and compare the digests");
  if (const auto status = options.parse(argc, argv)) return *status;
  arguments.ranks_are_given = ranks.count() > 0;
  if (const auto rank = arguments.lora_rank) {
    arguments.model.lora = {.rank = *rank, .alpha = arguments.lora_alpha.value_or(static_cast<float>(*rank))};
  }
  return run(arguments);
}

}  // namespace
}  // namespace gpt

int main(int argc, char** argv) {
  return penstock::measure::run_main([&] { return gpt::main_body(argc, argv); });
}
