#include "durable/found_commits.hpp"
#include "durable/progress.hpp"

#include "command.hpp"
#include "measure/command_line.hpp"
#include "zero/exchange/export_commit.hpp"

#include <memory>
#include <optional>

namespace penstock::tool {

namespace {

constexpr const char* operation = "penstock export";

struct ExportOptions {
  std::vector<std::filesystem::path> directories;
  std::filesystem::path out;
  std::optional<std::string> dtype;
  std::string shard_size = "5GB";
  std::uint32_t engine = 0;
  bool states = false;
  bool as_json = false;
};

void print_text(const FoundCommit& commit, const zero::exchange::ExportReport& report,
                const ExportOptions& options, double time) {
  fmt::print("commit {} of engine {}, step {}: {} tensors, {} written in {:.1f} s; weights in {}\n",
             commit.generation, commit.engine, commit.manifests.front().completed_steps, report.tensors,
             to_string(report.bytes), time, to_string(report.dtype));
  for (const std::string& file : report.files) fmt::print("  file    {}\n", (options.out / file).string());
}

void print_object(const FoundCommit& commit, const zero::exchange::ExportReport& report,
                  const ExportOptions& options, double time) {
  Json::Value json;
  json["engine"] = commit.engine;
  json["generation"] = Json::UInt64{commit.generation};
  json["step"] = Json::UInt64{commit.manifests.front().completed_steps};
  json["dtype"] = std::string(to_string(report.dtype));
  json["states"] = options.states;
  json["tensors"] = Json::UInt64{report.tensors};
  json["bytes"] = Json::UInt64{report.bytes.value()};
  json["seconds"] = time;
  for (const std::string& file : report.files) json["files"].append((options.out / file).string());
  print_json(json);
}

ExitStatus export_weights(const ExportOptions& options) {
  zero::exchange::ExportOptions what{.directory = options.out, .states = options.states};
  if (options.dtype) what.dtype = dtype_of(*options.dtype);
  if (auto size = parse_size(operation, "--shard-size", options.shard_size)) {
    what.shard_max = *size;
  } else {
    return fail(size.error());
  }
  const auto found = find_commits(options.directories);
  if (!found) return fail(found.error());
  for (const Error& error : found->damaged) (void)fail(error);
  const auto chosen = last_commit(*found, options.engine);
  if (!chosen) return fail(chosen.error());
  const FoundCommit& commit = **chosen;
  std::vector<std::string> notes;
  if (!found->damaged.empty())
    notes.push_back("of the commits that can be read, number " + std::to_string(commit.generation) +
                    " is the last");
  const TimePoint began = Clock::steady().now();
  Result<zero::exchange::ExportReport> report = zero::exchange::ExportReport{};
  {
    Progress progress(zero::exchange::export_size(commit.manifests.front(), what));
    what.progress = [&progress](ByteCount bytes) { progress(bytes); };
    report = zero::exchange::export_commit(commit.manifests, what);
  }
  if (!report)
    return fail(is_replaced(commit, *found) ? replaced(operation, commit, report.error()) : report.error());
  const double time = seconds(Clock::steady().now() - began);
  options.as_json ? print_object(commit, *report, options, time) : print_text(commit, *report, options, time);
  print_notes(notes);
  return done;
}

}  // namespace

void add_export_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<ExportOptions>();
  measure::CommandLine command =
      app.add_command("export",
                      "Write the weights of the last commit in a durable directory as "
                      "safetensors");
  command
      .add_option("directory", options->directories,
                  "The run's durable directories, and last OUT, the directory to write to, which is empty "
                  "or does not exist")
      .required()
      .at_least(2)
      .type_name("DIR... OUT");
  command.add_option("--dtype", options->dtype, "The type of the weights; without it, that of the parameters")
      .one_of({"fp32", "bf16", "fp16"});
  command.add_option("--shard-size", options->shard_size, "The tensors of a file, at most: 5GB, 500MiB")
      .show_default();
  command.add_flag("--states", options->states,
                   "Masters and moments too, in files of their own, for penstock import");
  command.add_option("--engine", options->engine, "Of several engines, the number of one").show_default();
  command.add_flag("--json", options->as_json, "An object instead of text");
  command.on_run([options, &status] {
    options->out = options->directories.back();
    options->directories.pop_back();
    status = export_weights(*options);
  });
}

}  // namespace penstock::tool
