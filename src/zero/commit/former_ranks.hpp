#pragma once

#include "zero/commit/generations.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>

#include <cstdint>

namespace penstock::zero {

/// Removes what ranks that the run no longer has have left of commits before `last`: the manifests of `engine`, and the
/// swap files, once no engine has a manifest there. `ranks`: how many the run has now; each of them removes the same
/// share. Leaves directories that another process has locked. After a power cut it can be repeated. Blocks, at most for
/// Options::deadline a file.
///
/// Errors: those of FileSystem; deadline_exceeded.
Result<void> remove_former_ranks(const RankDirectory::Options& options, std::uint32_t engine,
                                 const FoundManifest& last, std::uint32_t ranks);

}  // namespace penstock::zero
