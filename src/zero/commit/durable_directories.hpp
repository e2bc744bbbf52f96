#pragma once

#include "zero/commit/generations.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>

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

/// Whether a part of the last commit of an engine is away: that of this rank, which has none of any commit; or, if the
/// rank sees the directories of all, because all are on one machine, that of any. Else the ranks find out together: an
/// older commit may be whole.
///
/// Errors: corrupted; invalid_argument, for directories of two runs; those of reading a manifest that is not damaged.
Result<void> check_parts(const RankDirectory::Options& options, std::uint32_t engine, bool sees_all_ranks);

/// The error of a commit without the part of a rank, whose directory it names. `damaged`: manifests that cannot be
/// read, one line each.
[[nodiscard]] Error missing_part(const char* operation, const RankDirectory::Options& where,
                                 const MissingPart& missing, const std::vector<std::string>& damaged);

}  // namespace penstock::zero
