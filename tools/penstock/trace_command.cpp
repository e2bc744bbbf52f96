#include "command.hpp"
#include "measure/command_line.hpp"
#include "swap/trace_rules.hpp"
#include "zero/estimate/named_model.hpp"
#include "zero/layout/order_of_use.hpp"
#include "zero/layout/step_trace.hpp"

#include <penstock/swap/access_trace.hpp>
#include <penstock/zero/config/config_file.hpp>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <system_error>

namespace penstock::tool {

namespace {

constexpr const char* derive_operation = "trace derive";

struct DeriveOptions {
  std::string model, config;
  std::filesystem::path file;
  std::uint32_t gpus = 1, nodes = 1, rank = 0, recomputed_together = 1;
  std::string device_memory = "separate";
  bool by_layer = false, checkpoints = false;
};

/// A mistaken name must not cost a configuration or a checkpoint.
Result<void> check_is_new_or_a_trace(const std::filesystem::path& file) {
  // Another thing than a file is refused when the trace is saved; to open a pipe would wait for its writer.
  std::error_code error;
  if (!std::filesystem::is_regular_file(file, error)) return ok();
  std::ifstream stream(file, std::ios::binary);
  std::string begin(swap::trace_begin.size(), '\0');
  stream.read(begin.data(), static_cast<std::streamsize>(begin.size()));
  if (stream.gcount() == 0 || begin == swap::trace_begin) return ok();
  return Error::invalid_argument(derive_operation)
      .object(file.string())
      .wanted("a new file, or a trace, which is replaced")
      .got("a file that begins otherwise");
}

Result<void> derive(const DeriveOptions& options) {
  const std::uint32_t ranks = options.gpus * options.nodes;
  if (options.rank >= ranks) {
    return Error::invalid_argument(derive_operation)
        .object("--rank")
        .wanted("below " + std::to_string(ranks) + ", the ranks of all nodes")
        .got(options.rank);
  }
  PENSTOCK_TRY(check_is_new_or_a_trace(options.file));
  PENSTOCK_TRY_ASSIGN(auto model, zero::estimate::NamedModel::load(options.model));
  print_notes(model.notes);
  PENSTOCK_TRY_ASSIGN(const auto file, zero::ConfigFile::read(options.config, {.world_size = ranks}));
  const zero::Config& config = file.config;
  print_notes(config.notes);
  if (config.penstock.update_in_backward) {
    print_notes(
        {"penstock.update_in_backward: a run uses tiles beside its backward, in another order each time; "
         "in the trace they follow it, and penstock simulate --update-in-backward puts them there"});
  }
  if (config.optimizer.type == cpu_adam::Optimizer::muon) PENSTOCK_TRY(model.use_muon());
  const auto memory =
      options.device_memory == "host" ? tiers::DeviceMemory::host : tiers::DeviceMemory::separate;
  PENSTOCK_TRY_ASSIGN(const auto plan, plan_memory(config, model.layout, ranks, options.gpus, memory,
                                                   options.rank % options.gpus));
  zero::StepShape shape{.rank = options.rank,
                        .micro_batches = options.by_layer ? 1 : config.gradient_accumulation_steps,
                        .checkpoints = options.checkpoints};
  if (plan.checkpoints.leave_device() && !options.checkpoints) {
    print_notes(
        {"checkpoints: their uses are not in the trace, because the trainer orders them; with "
         "--checkpoints the input of each unit is written in the forward and read in the backward"});
  } else if (!plan.checkpoints.leave_device() && options.checkpoints) {
    print_notes({"--checkpoints: the layout has no checkpoints that leave the device"});
  }
  if (options.recomputed_together > 1) {
    shape.acquires = zero::order_with_recomputation(static_cast<std::uint32_t>(model.layout.units.size()),
                                                    options.recomputed_together);
  }
  PENSTOCK_TRY_ASSIGN(auto trace, derive_trace(config, model.layout, plan, shape));
  trace.label = model.name;
  PENSTOCK_TRY(swap::save_trace(trace, options.file));
  fmt::print("{} uses of {} tensors\n", trace.uses.size(), trace.tensors.size());
  return ok();
}

struct DiffOptions {
  std::filesystem::path wanted, got;
};

/// Whether both are the same.
Result<bool> compare(const DiffOptions& options) {
  PENSTOCK_TRY_ASSIGN(const auto wanted, swap::load_trace(options.wanted));
  PENSTOCK_TRY_ASSIGN(const auto got, swap::load_trace(options.got));
  const auto difference = swap::first_difference(wanted, got);
  fmt::print("{}\n", difference ? to_string(*difference)
                                : "the same " + std::to_string(wanted.uses.size()) + " uses");
  if (const auto* const tensor = swap::first_kept_elsewhere(wanted, got); tensor != nullptr && !difference)
    fmt::print("of tensors that are kept elsewhere, first \"{}\": what a step moves differs\n", tensor->name);
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) return Error::from_errno("trace diff", errno);
  return !difference;
}

void add_derive_command(measure::CommandLine& trace, ExitStatus& status) {
  auto options = std::make_shared<DeriveOptions>();
  measure::CommandLine command = trace.add_command(
      "derive", "Save the uses of host memory in a training step of a rank, as its engine makes them");
  command.add_option("file", options->file, "The trace; a trace that is there is replaced")
      .required()
      .type_name("FILE");
  command.add_option("--model", options->model, "As of penstock estimate").required().type_name("NAME|FILE");
  command.add_option("--config", options->config, "A ds_config.json").required().type_name("FILE");
  command.add_option("--gpus", options->gpus, "GPUs per node, one rank each")
      .range(1u, 65535u)
      .show_default();
  command.add_option("--nodes", options->nodes, "Nodes").range(1u, 65535u).show_default();
  command.add_option("--rank", options->rank, "Which of all ranks")
      .range(0u, 65535u * 65535u - 1)
      .show_default();
  command
      .add_option("--device-memory", options->device_memory,
                  "separate, as of a GPU, or host, for a run on the CPU")
      .one_of({"separate", "host"})
      .show_default();
  auto by_layer = command.add_flag("--accumulate-by-layer", options->by_layer,
                                   "The trainer takes all micro-batches through a unit before the next one");
  auto together = command.add_option(
      "--recompute-together", options->recomputed_together,
      "The trainer keeps the input of each so many units, and computes the forward of all of them again "
      "before their backward");
  together.range(1u, 65535u).show_default();
  command
      .add_flag(
          "--checkpoints", options->checkpoints,
          "Also the uses of the layout's activation checkpoints that leave the device: the input of each "
          "unit is written in the forward and read in the backward")
      .excludes(together)
      .excludes(by_layer);
  command.on_run([options, &status] {
    const auto outcome = derive(*options);
    status = outcome ? done : fail(outcome.error());
  });
}

void add_diff_command(measure::CommandLine& trace, ExitStatus& status) {
  auto options = std::make_shared<DiffOptions>();
  measure::CommandLine command = trace.add_command(
      "diff", "Print the first use that differs; the exit status is 1 then, and 2 after an error");
  command.add_option("wanted-file", options->wanted, "A trace").required().type_name("FILE");
  command.add_option("got-file", options->got, "Another one").required().type_name("FILE");
  command.on_run([options, &status] {
    const auto same = compare(*options);
    if (!same) (void)fail(same.error());
    status = !same ? bad_usage : *same ? done : failed;
  });
}

}  // namespace

void add_trace_command(measure::CommandLine& app, ExitStatus& status) {
  measure::CommandLine trace =
      app.add_command("trace", "Save and compare orders in which tensors are used, see docs/policies.md");
  trace.require_command();
  add_derive_command(trace, status);
  add_diff_command(trace, status);
}

}  // namespace penstock::tool
