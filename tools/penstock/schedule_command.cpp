#include <penstock/zero/config/config_file.hpp>

#include "command.hpp"
#include "measure/command_line.hpp"

#include <memory>

namespace penstock::tool {

namespace {

struct ScheduleOptions {
  std::string file;
  zero::ConfigFile::Options reading;
  std::uint64_t steps = 0;
  bool as_json = false, hex = false;
};

void print_step(const ScheduleOptions& options, std::uint64_t step, const zero::LearningRate& now) {
  if (options.as_json) {
    fmt::print(R"({}  {{"step": {}, "lr": {}, "lr_hex": "{:a}", "beta1": {}}})", step == 1 ? "" : ",\n", step,
               now.rate, now.rate, now.betas[0]);
  } else if (options.hex) {
    fmt::print("{:>8}  {:<24a}  {:a}\n", step, now.rate, now.betas[0]);
  } else {
    fmt::print("{:>8}  {:<24}  {}\n", step, now.rate, now.betas[0]);
  }
}

ExitStatus print_schedule(const ScheduleOptions& options) {
  const auto file = zero::ConfigFile::of_argument(options.file, options.reading);
  if (!file) return fail(file.error());
  const zero::Config& config = file->config;
  print_notes(config.notes);
  if (options.as_json)
    fmt::print("[\n");
  else
    fmt::print("{:>8}  {:<24}  {}\n", "step", "lr", "beta1");
  for (std::uint64_t step = 1; step <= options.steps; ++step) {
    print_step(options, step, config.learning_rate_of(step));
  }
  if (options.as_json) fmt::print("\n]\n");
  return done;
}

}  // namespace

void add_schedule_command(measure::CommandLine& config, ExitStatus& status) {
  auto options = std::make_shared<ScheduleOptions>();
  measure::CommandLine command =
      config.add_command("schedule", "Print the learning rate and beta1 of each step");
  command.add_option("file", options->file, "The configuration, or its text in urlsafe base64")
      .required()
      .type_name("FILE");
  command.add_option("--steps", options->steps, "Steps to print, from step 1")
      .required()
      .range(std::uint64_t{1}, std::uint64_t{1} << 40);
  command.add_option("--world-size", options->reading.world_size, "Ranks of the run")
      .range(1u, 1u << 24)
      .show_default();
  command.add_flag("--lenient", options->reading.lenient, "As of config check");
  const measure::CommandOption as_json =
      command.add_flag("--json", options->as_json, "An array of objects instead of a table");
  command.add_flag("--hex", options->hex, "Exact numbers, in hexadecimal").excludes(as_json);
  command.on_run([options, &status] { status = print_schedule(*options); });
}

}  // namespace penstock::tool
