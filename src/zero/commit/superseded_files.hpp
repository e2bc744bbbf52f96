#pragma once

#include "zero/commit/generations.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>
#include <set>
#include <string>

namespace penstock::zero {

// Files of which a later commit, that all ranks have, is independent. After a power cut each call can be repeated. They
// block, at most for Options::deadline a file. Errors: those of FileSystem; deadline_exceeded.

/// Removes what ranks that the run no longer has have left of commits before `last`: the manifests of `engine`, and the
/// swap files, once no engine has a manifest there. `ranks`: how many the run has now; each of them removes the same
/// share. Leaves directories that another process has locked.
Result<void> remove_former_ranks(const RankDirectory::Options& options, std::uint32_t engine,
                                 const FoundManifest& last, std::uint32_t ranks);

/// Removes the files with copies of `engine`, and those with tensors of all engines, that neither a manifest refers to
/// nor this process has open, whose names are `open`: an earlier process had these tensors in another tier.
Result<void> remove_unused_files(RankDirectory& directory, std::uint32_t engine,
                                 const std::set<std::string>& open);

}  // namespace penstock::zero
