#include <penstock/zero/config/config.hpp>

#include "command.hpp"

#include <memory>

namespace penstock::tool {

namespace {

struct CheckOptions {
  std::string file;
  std::uint32_t world_size = 1;
  bool here = false;
};

ExitStatus check(const CheckOptions& options) {
  const auto config = zero::Config::from_file(options.file, options.world_size);
  if (!config) {
    fail(config.error());
    return bad_usage;
  }
  for (const std::string& note : config->notes) fmt::print(stderr, "note: {}\n", note);

  const auto usable = config->check_paths();
  if (!usable && options.here) return fail(usable.error());
  if (!usable) fmt::print(stderr, "note: {}\n", usable.error().message());
  fmt::print("{}\n", config->to_json());
  return done;
}

constexpr std::string_view introduction =
    R"(# The keys of ds_config.json

`penstock config keys` prints this page from the table that the reader uses. A key that is not listed here is an
error, and so is a value that the key does not accept. `"auto"` means the default. The smallest file is
`{"train_micro_batch_size_per_gpu": 1}`, which means the default for every key; an empty file is an error, as in
DeepSpeed, because it has no batch size.

Comments (`//`, `#`, `/* */`), trailing commas and integral floats (`5e8`) are accepted; numbers that are not JSON
(`+8`, `008`) are not. Values are compared with their case, except where DeepSpeed ignores it. A number may be a string
only in the blocks in which DeepSpeed converts strings: `zero_optimization`, `bf16`, `fp16`, `tensorboard`,
`csv_monitor`, `wandb`, `comet`, `comms_logger`, `hybrid_engine`, `compile` and `timers`. An integer then consists of
digits: `"500000000"`, not `"5e8"`. In the same blocks, true may also be `1` or one of `"true"`, `"yes"`, `"on"`, `"1"`,
`"y"` and `"t"`, false `0` or one of `"false"`, `"no"`, `"off"`, `"0"`, `"n"` and `"f"`, in any case; in `aio` the words
alone.

| Status | Means |
|---|---|
| supported | used by the part of the program in the column "Read by" |
| deprecated | accepted instead of the key that its note names |
| no effect | accepted after a check of its type; a note gives the reason |
| only the default | not supported yet: any other value is refused |
| removed | always refused; the note names the alternative |

| Key | Values | Default | Status | Read by | Note |
|---|---|---|---|---|---|
)";

std::string code(const std::string& text) {
  return text.empty() ? text : "`" + text + "`";
}

/// Prints docs/configuration.md.
void print_page(const std::vector<zero::ConfigKey>& keys) {
  fmt::print("{}", introduction);
  for (const zero::ConfigKey& key : keys) {
    std::string names = code(key.path);
    for (const std::string& alias : key.aliases) names += ", also " + code(alias);
    fmt::print("| {} | {} | {} | {} | {} | {} |\n", names, key.takes, key.default_value, key.status,
               key.read_by, key.help);
  }
}

void print_list(const std::vector<zero::ConfigKey>& keys) {
  Json::Value list(Json::arrayValue);
  for (const zero::ConfigKey& key : keys) {
    Json::Value& row = list.append(Json::objectValue);
    row["key"] = key.path;
    for (const std::string& alias : key.aliases) row["aliases"].append(alias);
    row["takes"] = key.takes;
    row["default"] = key.default_value;
    row["status"] = key.status;
    row["read_by"] = key.read_by;
    row["help"] = key.help;
  }
  print_json(list);
}

void add_check_command(CLI::App& config, ExitStatus& status) {
  auto options = std::make_shared<CheckOptions>();
  CLI::App* command = config.add_subcommand(
      "check", "Print the effective configuration as JSON, or every error with its key and line");
  command->add_option("file", options->file, "The configuration")->required()->type_name("FILE");
  command->add_option("--world-size", options->world_size, "Ranks of the run")
      ->check(CLI::Range(1u, 1u << 24))
      ->capture_default_str();
  command->add_flag("--here", options->here, "Also check the directories of nvme_path on this machine");
  command->callback([options, &status] { status = check(*options); });
}

void add_keys_command(CLI::App& config, ExitStatus& status) {
  auto as_json = std::make_shared<bool>(false);
  CLI::App* command = config.add_subcommand(
      "keys",
      "Print every key with its values, its default, its status and the part of the program that reads it");
  command->add_flag("--json", *as_json, "A list of objects instead of a page in Markdown");
  command->callback([as_json, &status] {
    *as_json ? print_list(zero::config_keys()) : print_page(zero::config_keys());
    status = done;
  });
}

}  // namespace

void add_config_command(CLI::App& app, ExitStatus& status) {
  CLI::App* config = app.add_subcommand("config", "Work with a ds_config.json");
  config->require_subcommand(1);
  add_check_command(*config, status);
  add_keys_command(*config, status);
  add_schedule_command(*config, status);
}

}  // namespace penstock::tool
