#include "durable/found_commits.hpp"
#include "durable/progress.hpp"

#include "command.hpp"
#include "measure/command_line.hpp"
#include "zero/commit/verify_commit.hpp"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::tool {

namespace {

struct VerifyOptions {
  std::vector<std::filesystem::path> directories;
  std::uint32_t threads = 4;
  bool as_json = false;
};

struct Verified {
  zero::VerifiedCommit commit;
  double time = 0;
};

Result<Verified> read_back(const FoundCommit& commit, std::uint32_t threads) {
  ByteCount total;
  for (const zero::Manifest& manifest : commit.manifests) {
    for (const zero::CommittedTensor& tensor : manifest.tensors) total += tensor.size;
  }
  const TimePoint began = Clock::steady().now();
  Progress progress(total);
  PENSTOCK_TRY_ASSIGN(auto verified, zero::verify_commit(tiers::real_file_system(), commit.manifests, threads,
                                                         [&progress](ByteCount bytes) { progress(bytes); }));
  return Verified{std::move(verified), seconds(Clock::steady().now() - began)};
}

void print_row(const FoundCommit& commit, const Verified& verified) {
  const std::size_t damaged = verified.commit.damaged.size();
  fmt::print("commit {} of engine {}: {} tensors, {} read in {:.1f} s, {:.2f} GB/s: {}\n", commit.generation,
             commit.engine, verified.commit.tensors, to_string(verified.commit.bytes), verified.time,
             double(verified.commit.bytes.value()) / 1e9 / std::max(verified.time, 1e-9),
             damaged == 0 ? "whole" : std::to_string(damaged) + " tensors are damaged");
}

Json::Value row_of(const FoundCommit& commit, const Verified& verified) {
  Json::Value row;
  row["engine"] = commit.engine;
  row["generation"] = Json::UInt64{commit.generation};
  row["tensors"] = Json::UInt64{verified.commit.tensors};
  row["damaged"] = Json::UInt64{verified.commit.damaged.size()};
  row["bytes"] = Json::UInt64{verified.commit.bytes.value()};
  row["seconds"] = verified.time;
  return row;
}

/// Of each engine, the commit that a run continues from.
ExitStatus verify(const VerifyOptions& options) {
  const auto found = find_commits(options.directories);
  if (!found) return fail_to_find(found.error());
  Json::Value json(Json::arrayValue);
  std::vector<Error> errors = found->damaged;
  for (const std::uint32_t engine : found->engines()) {
    const auto last = last_commit(*found, engine);
    if (!last) {
      errors.push_back(last.error());
      continue;
    }
    const FoundCommit& commit = **last;
    const auto verified = read_back(commit, options.threads);
    if (!verified) return fail(verified.error());
    const auto& damaged = verified->commit.damaged;
    if (!damaged.empty() && is_replaced(commit, *found)) {
      errors.push_back(replaced("penstock verify", commit, damaged.front()));
      continue;
    }
    errors.insert(errors.end(), damaged.begin(), damaged.end());
    if (options.as_json) {
      json.append(row_of(commit, *verified));
    } else {
      print_row(commit, *verified);
    }
  }
  if (options.as_json) print_json(json);
  for (const Error& error : errors) (void)fail(error);
  return errors.empty() ? done : failed;
}

}  // namespace

void add_verify_command(measure::CommandLine& app, ExitStatus& status) {
  auto options = std::make_shared<VerifyOptions>();
  measure::CommandLine command =
      app.add_command("verify", "Read back every block of the last commit in a durable directory");
  command.add_option("directory", options->directories, "The run's durable directories")
      .required()
      .type_name("DIR");
  command.add_option("--threads", options->threads, "Readers").range(1u, 256u).show_default();
  command.add_flag("--json", options->as_json, "An array of objects instead of text");
  command.on_run([options, &status] { status = verify(*options); });
}

}  // namespace penstock::tool
