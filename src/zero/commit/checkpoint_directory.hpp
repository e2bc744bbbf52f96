#pragma once

#include "zero/commit/generations.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {

/// A directory of checkpoints, `global_step12` and so on, each with the subdirectories of its ranks (see
/// RankDirectory), and the file `latest`, which names one. Several ranks use it at the same time, each for its own
/// part.
///
/// Used by one thread. Every call blocks, at most for `deadline`.
class CheckpointDirectory {
 public:
  struct Options {
    tiers::FileSystem* files = &tiers::real_file_system();  ///< outlives the object
    std::filesystem::path directory;
    std::uint32_t rank = 0;
    TimePoint deadline{};
  };
  explicit CheckpointDirectory(Options options) : options_(std::move(options)) {}

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t step) const;
  /// The rank's part of the checkpoint of a step, for writing. Errors: those of RankDirectory::open().
  [[nodiscard]] Result<std::unique_ptr<RankDirectory>> open(std::uint64_t step);
  /// Removes an incomplete part of the rank, as far as possible.
  void remove_own(std::uint64_t step, std::uint32_t engine);
  /// Makes `latest` name the checkpoint of a step, durably. Every rank may call it.
  Result<void> set_latest(std::uint64_t step);
  /// Removes the rank's parts of the oldest checkpoints of the run that `last` is of, but for the newest `keep`.
  /// Returns their paths.
  [[nodiscard]] Result<std::vector<std::filesystem::path>> remove_old(std::uint32_t engine,
                                                                      const FoundManifest& last,
                                                                      std::uint32_t keep);
  /// The checkpoint that `latest` names; the directory itself, if it is one. Errors: not_found; invalid_argument, for a
  /// `latest` that names none.
  [[nodiscard]] Result<std::filesystem::path> find();

 private:
  [[nodiscard]] RankDirectory::Options rank_options(std::uint64_t step) const;
  Result<void> remove_part(std::uint64_t step, std::uint32_t engine);

  Options options_;
};

}  // namespace penstock::zero
