#include "durable/found_commits.hpp"
#include "durable/progress.hpp"

#include "command.hpp"
#include "zero/commit/verify_commit.hpp"

#include <algorithm>
#include <memory>

namespace penstock::tool {

namespace {

struct VerifyOptions {
  std::vector<std::filesystem::path> directories;
  std::uint32_t threads = 4;
  bool as_json = false;
};

ExitStatus verify(const VerifyOptions& options) {
  const auto found = find_commits(options.directories);
  if (!found) return fail(found.error());
  Json::Value json(Json::arrayValue);
  ExitStatus status = found->damaged.empty() ? done : failed;
  for (const Error& error : found->damaged) (void)fail(error);
  for (const FoundCommit& commit : found->commits) {
    ByteCount total;
    for (const zero::Manifest& manifest : commit.manifests) {
      for (const zero::CommittedTensor& tensor : manifest.tensors) total += tensor.size;
    }
    const TimePoint began = Clock::steady().now();
    Result<zero::VerifiedCommit> verified = zero::VerifiedCommit{};
    {
      Progress progress(total);
      verified = zero::verify_commit(tiers::real_file_system(), commit.manifests, options.threads,
                                     [&progress](ByteCount bytes) { progress(bytes); });
    }
    if (!verified) return fail(verified.error());
    const double time = seconds(Clock::steady().now() - began);
    for (const Error& error : verified->damaged) (void)fail(error);
    const bool good = verified->damaged.empty() && commit.is_complete();
    if (!good) status = failed;
    if (options.as_json) {
      Json::Value row;
      row["engine"] = commit.engine;
      row["generation"] = Json::UInt64{commit.generation};
      row["complete"] = commit.is_complete();
      row["tensors"] = Json::UInt64{verified->tensors};
      row["damaged"] = Json::UInt64{verified->damaged.size()};
      row["bytes"] = Json::UInt64{verified->bytes.value()};
      row["seconds"] = time;
      json.append(row);
      continue;
    }
    fmt::print("commit {} of engine {}: {} tensors, {} read in {:.1f} s, {:.2f} GB/s: {}\n",
               commit.generation, commit.engine, verified->tensors, to_string(verified->bytes), time,
               double(verified->bytes.value()) / 1e9 / std::max(time, 1e-9),
               good ? "whole"
               : verified->damaged.empty()
                   ? "incomplete, some ranks have none of it"
                   : std::to_string(verified->damaged.size()) + " tensors are damaged");
  }
  if (options.as_json) print_json(json);
  return status;
}

}  // namespace

void add_verify_command(CLI::App& app, ExitStatus& status) {
  auto options = std::make_shared<VerifyOptions>();
  CLI::App* command =
      app.add_subcommand("verify", "Read back every block of the commits in a durable directory");
  command->add_option("directory", options->directories, "The run's durable directories")
      ->required()
      ->type_name("DIR");
  command->add_option("--threads", options->threads, "Readers")
      ->check(CLI::Range(1u, 256u))
      ->capture_default_str();
  command->add_flag("--json", options->as_json, "An array of objects instead of text");
  command->callback([options, &status] { status = verify(*options); });
}

}  // namespace penstock::tool
