#pragma once

#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <filesystem>
#include <vector>

namespace penstock::zero {

// What is judged of the durable directories that a run or a tool is given, before anything is made or changed in them.
// Every call blocks, at most for Options::deadline a file.

/// Errors: unsupported, for a file system whose files do not outlive the machine's power; invalid_argument, for two
/// names of one directory, and for a checkpoint, which the run would overwrite; deadline_exceeded.
Result<void> check_directories(const RankDirectory::Options& options);

/// The directories, first the one with the manifests; as they are, if there are none.
///
/// Errors: invalid_argument, for directories of two runs, in which two have manifests.
[[nodiscard]] Result<std::vector<std::filesystem::path>> manifests_first(
    const RankDirectory::Options& options);

/// Errors: invalid_argument, if the rank has no manifest and its files show that the run had more directories, of which
/// one with manifests may be missing here.
Result<void> check_all_named(const RankDirectory& directory);

/// The manifests of `engine` in the rank's directory. Those that cannot be read are left out.
///
/// Errors: not_found and truncated, naming the file, if one that they refer to is not there as a whole;
/// invalid_argument, for manifests of two runs.
[[nodiscard]] Result<std::vector<Manifest>> usable_manifests(const RankDirectory& directory,
                                                             std::uint32_t engine);

}  // namespace penstock::zero
