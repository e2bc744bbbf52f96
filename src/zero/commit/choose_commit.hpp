#pragma once

#include "zero/commit/generations.hpp"

#include <penstock/base/result.hpp>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

namespace penstock::zero {

/// What one rank sees in the durable directories: its own subdirectory and those of other ranks, which on several
/// machines are not those that they see themselves.
struct CommitView {
  /// The number of the run in a rank's subdirectory.
  struct Mark {
    std::array<std::uint64_t, 2> run = {};
    std::uint64_t rank = 0;

    auto operator<=>(const Mark&) const = default;
  };
  std::vector<FoundManifest> manifests;
  std::vector<Mark> marks;
};

/// The last commit that `ranks` ranks can go on from: each sees its own part, if the commit has as many ranks, and else
/// the parts of all. None, if no commit is complete. What is newer was not completed, as far as manifests (by
/// before_generation) and marks tell, and may be removed.
///
/// `views`: of each rank, or one that all have. Pure: every rank that has the same views chooses the same.
///
/// Errors, each with what the ranks have: invalid_argument, if parts of two runs meet; not_found, if a newer commit is
/// whole, but not where the ranks can read it; corrupted, if a newer commit was complete, and a part of it is away.
[[nodiscard]] Result<std::optional<FoundManifest>> choose_commit(const char* operation,
                                                                 const std::filesystem::path& directory,
                                                                 std::span<const CommitView> views,
                                                                 std::uint32_t ranks);

/// The same in the directory of a checkpoint, which nothing removes: a newer one that is incomplete does not matter.
///
/// Errors: corrupted, if each lacks a part.
[[nodiscard]] Result<std::optional<FoundManifest>> choose_checkpoint(const char* operation,
                                                                     const std::filesystem::path& directory,
                                                                     std::span<const CommitView> views,
                                                                     std::uint32_t ranks);

}  // namespace penstock::zero
