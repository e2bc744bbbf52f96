#include "found_commits.hpp"

#include "zero/commit/checkpoint_directory.hpp"
#include "zero/commit/choose_commit.hpp"
#include "zero/commit/durable_directories.hpp"
#include "zero/commit/generations.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace penstock::tool {

namespace {

/// The checkpoint that `latest` in a directory without parts of ranks names; else the directory. Errors:
/// invalid_argument, for a `latest` that names none.
Result<std::filesystem::path> resolve(const std::filesystem::path& directory) {
  const zero::RankDirectory::Options options{.directories = {directory}};
  const auto ranks = zero::RankDirectory::ranks(options);
  if (!ranks || !ranks->empty()) return directory;
  auto named =
      zero::CheckpointDirectory({.directory = directory, .deadline = options.deadline}).find("find_commits");
  if (!named && named.error().code() == ErrorCode::not_found) return directory;
  return named;
}

/// `has_changed`: a manifest was removed meanwhile.
Result<FoundCommits> list_commits(const zero::RankDirectory::Options& options, bool& has_changed) {
  FoundCommits found{.directories = options.directories};
  PENSTOCK_TRY_ASSIGN(const auto ranks, zero::RankDirectory::ranks(options));
  // Manifests of one generation that come from different attempts are different commits.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>, FoundCommit> commits;
  for (const std::uint32_t rank : ranks) {
    PENSTOCK_TRY_ASSIGN(const auto marks, zero::RankDirectory::marks_of(options, rank));
    for (const auto& [engine, run] : marks) found.marks[engine].push_back({run, rank});
    PENSTOCK_TRY_ASSIGN(const auto manifests, zero::RankDirectory::manifests_of(options, rank));
    for (const auto& [engine, generation] : manifests) {
      auto manifest = zero::RankDirectory::read_of(options, rank, engine, generation);
      if (!manifest && manifest.error().code() == ErrorCode::not_found) {
        has_changed = true;
      } else if (!manifest) {
        found.damaged.push_back(manifest.error());
      } else {
        FoundCommit& commit = commits[{engine, generation, manifest->attempt}];
        commit.engine = engine;
        commit.generation = generation;
        commit.manifests.push_back(*std::move(manifest));
      }
    }
  }
  for (auto& [key, commit] : commits) found.commits.push_back(std::move(commit));
  return found;
}

/// What tells whether a run has written or removed manifests between two lists.
std::vector<std::array<std::uint64_t, 4>> parts_of(const FoundCommits& found) {
  std::vector<std::array<std::uint64_t, 4>> parts;
  for (const FoundCommit& commit : found.commits) {
    for (const zero::Manifest& one : commit.manifests)
      parts.push_back({commit.engine, commit.generation, one.attempt, one.rank});
  }
  return parts;
}

}  // namespace

std::vector<std::uint32_t> FoundCommits::engines() const {
  std::set<std::uint32_t> engines;
  for (const FoundCommit& commit : commits) engines.insert(commit.engine);
  return {engines.begin(), engines.end()};
}

Result<FoundCommits> find_commits(const std::vector<std::filesystem::path>& directories) {
  zero::RankDirectory::Options options;
  PENSTOCK_TRY_ASSIGN(options.directories, zero::absolute_names(directories));
  for (std::filesystem::path& one : options.directories) {
    PENSTOCK_TRY_ASSIGN(const auto resolved, resolve(one));
    if (directories.size() > 1 && resolved != one) {
      return Error::invalid_argument("find_commits")
          .object(one.string())
          .reason("it has checkpoints, which are no part of a run in several directories")
          .advice("name it alone");
    }
    one = resolved;
  }
  for (const std::filesystem::path& one : options.directories)
    PENSTOCK_TRY(zero::RankDirectory::ranks({.directories = {one}}));
  PENSTOCK_TRY_ASSIGN(options.directories, zero::manifests_first(options));
  FoundCommits found;
  // A run that goes on may write and remove manifests while they are listed: what does not change is damaged.
  constexpr int attempts_max = 100;
  std::vector<std::array<std::uint64_t, 4>> before;
  for (int attempt = 0; attempt < attempts_max; ++attempt) {
    bool has_changed = false;
    PENSTOCK_TRY_ASSIGN(found, list_commits(options, has_changed));
    auto parts = parts_of(found);
    if (attempt > 0 && !has_changed && parts == before) break;
    before = std::move(parts);
    const auto engines = found.engines();
    const bool all_whole = std::ranges::all_of(
        engines, [&](std::uint32_t engine) { return last_commit(found, engine).has_value(); });
    if (!has_changed && all_whole) break;
  }
  if (!found.commits.empty() || !found.damaged.empty()) return found;
  return Error::invalid_argument("find_commits")
      .object(directories.front().string())
      .reason("it has no commit of Penstock")
      .advice(
          "name the directories that penstock.durable_directory of the run names, in any order; or a "
          "checkpoint");
}

Result<const FoundCommit*> last_commit(const FoundCommits& found, std::uint32_t engine) {
  zero::CommitView view;
  if (const auto marks = found.marks.find(engine); marks != found.marks.end()) view.marks = marks->second;
  const zero::Manifest* newest = nullptr;
  for (const FoundCommit& commit : found.commits) {
    if (commit.engine != engine) continue;
    for (const zero::Manifest& one : commit.manifests) view.manifests.push_back(zero::found_of(one));
    newest = &commit.manifests.front();
  }
  const std::filesystem::path& directory = found.directories.front();
  const auto choose =
      newest != nullptr && zero::is_checkpoint(*newest) ? zero::choose_checkpoint : zero::choose_commit;
  PENSTOCK_TRY_ASSIGN(const auto chosen,
                      choose("last_commit", directory, {&view, 1}, newest == nullptr ? 1 : newest->ranks));
  for (const FoundCommit& commit : found.commits) {
    if (chosen && commit.engine == engine && commit.generation == chosen->generation &&
        commit.manifests.front().attempt == chosen->attempt) {
      return &commit;
    }
  }
  auto error = Error(ErrorCode::not_found, "last_commit")
                   .object(directory.string())
                   .reason("it has no commit of engine " + std::to_string(engine) +
                           " of which every rank has its part");
  if (const auto missing = zero::newest_missing_part(view.manifests)) {
    return std::move(error)
        .got("commit " + std::to_string(missing->generation) + " of " + std::to_string(missing->ranks) +
             " ranks without " + zero::rank_name(missing->rank))
        .advice("bring back, or name, the directories of all ranks");
  }
  return std::move(error).advice("--engine names one; penstock inspect prints which there are");
}

bool is_replaced(const FoundCommit& commit, const FoundCommits& found) {
  const auto now = find_commits(found.directories);
  if (!now) return false;
  return std::none_of(now->commits.begin(), now->commits.end(), [&](const FoundCommit& one) {
    return one.engine == commit.engine && one.generation == commit.generation && one.is_complete() &&
           one.manifests.front().attempt == commit.manifests.front().attempt;
  });
}

Error replaced(const char* operation, const FoundCommit& commit, const Error& error) {
  return Error(ErrorCode::in_use, operation)
      .object("commit " + std::to_string(commit.generation))
      .reason("a run that goes on has replaced the commit while it was read")
      .note(error.message())
      .advice("stop the run, or repeat it right after a commit");
}

}  // namespace penstock::tool
