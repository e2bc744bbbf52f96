#pragma once

#include "zero/commit/choose_commit.hpp"
#include "zero/commit/manifest.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace penstock::tool {

/// A commit in a durable directory, with the manifests that were found.
struct FoundCommit {
  std::uint32_t engine = 0;
  std::uint64_t generation = 0;
  std::vector<zero::Manifest> manifests;  ///< by rank

  [[nodiscard]] bool is_complete() const { return manifests.size() == manifests.front().ranks; }
};

struct FoundCommits {
  std::vector<std::filesystem::path> directories;                      ///< where they are
  std::vector<FoundCommit> commits;                                    ///< by engine and generation
  std::map<std::uint32_t, std::vector<zero::CommitView::Mark>> marks;  ///< by engine
  std::vector<Error> damaged;                                          ///< manifests that cannot be read

  /// The engines that have commits, ascending.
  [[nodiscard]] std::vector<std::uint32_t> engines() const;
};

/// `directories`: those of a run, or one with checkpoints, of which that which `latest` names is taken.
///
/// Errors: not_found and permission, for a directory; invalid_argument, for one that no run has used, or several of
/// different runs.
[[nodiscard]] Result<FoundCommits> find_commits(const std::vector<std::filesystem::path>& directories);

/// The last commit of an engine of which every rank has its part, from which a run continues. In `found`, which
/// outlives it.
///
/// Errors: not_found, naming a rank whose part is missing, if there is none; those of choose_commit(), or
/// choose_checkpoint() in a checkpoint, with which a run refuses to continue.
[[nodiscard]] Result<const FoundCommit*> last_commit(const FoundCommits& found, std::uint32_t engine);

/// Whether a run that goes on has replaced the commit since it was found, so that its bytes may be overwritten.
[[nodiscard]] bool is_replaced(const FoundCommit& commit, const FoundCommits& found);
/// The error of a command that has read such a commit, instead of `error`.
[[nodiscard]] Error replaced(const char* operation, const FoundCommit& commit, const Error& error);

}  // namespace penstock::tool
