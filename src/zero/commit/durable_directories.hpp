#pragma once

#include "zero/commit/choose_commit.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>
#include <penstock/zero/launch/rank_identity.hpp>

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace penstock::zero {

// What is judged of the durable directories that a run or a tool is given, whose names are absolute, before anything is
// made or changed in them. Every call blocks, at most for Options::deadline a file.

/// The absolute names. Errors: not_found, for a relative one where the process's own directory has been removed.
[[nodiscard]] Result<std::vector<std::filesystem::path>> absolute_names(
    const std::vector<std::filesystem::path>& directories);

/// Errors: unsupported, for a file system whose files do not outlive the machine's power; invalid_argument, for two
/// names of one directory, and for checkpoints, which the run would overwrite; deadline_exceeded.
Result<void> check_directories(const RankDirectory::Options& options);

/// The directories, first the one with the manifests; as they are, if there are none.
///
/// Errors: invalid_argument, for directories of two runs, in which two have manifests.
[[nodiscard]] Result<std::vector<std::filesystem::path>> manifests_first(
    const RankDirectory::Options& options);

/// The manifests of the rank, of each of its engines and those that have none in this process, ascending by generation.
/// Those that are damaged are left out.
///
/// Errors: not_found, if a directory has a run (RankDirectory::mark()) of which there is no manifest; not_found and
/// truncated, naming the file, if each manifest of an engine refers to one that is not there as a whole;
/// invalid_argument, for directories of two runs; those of reading a manifest that is not damaged.
[[nodiscard]] Result<std::map<std::uint32_t, std::vector<Manifest>>> committed_manifests(
    const RankDirectory::Options& options);

/// What the rank sees of the commits of an engine. `damaged`: manifests that cannot be used, one line each, are added.
///
/// Errors: those of reading a manifest that is not damaged.
[[nodiscard]] Result<CommitView> view_commits(const RankDirectory::Options& options, std::uint32_t engine,
                                              std::vector<std::string>& damaged);

/// What this rank can tell of the commits of an engine without its peers, which may see what it does not: that its own
/// part is away, of a commit of which others are there; and choose_commit(), if it sees something of each rank, and all
/// are on this machine.
///
/// Errors: corrupted, for its own part; those of choose_commit() and of view_commits().
Result<void> check_commit(const RankDirectory::Options& options, std::uint32_t engine,
                          const RankIdentity& identity);

/// The error with a line for each manifest that is damaged.
[[nodiscard]] Error with_damaged(Error error, const std::vector<std::string>& damaged);

}  // namespace penstock::zero
