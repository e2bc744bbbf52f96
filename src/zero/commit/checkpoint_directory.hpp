#pragma once

#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <array>
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
  /// The rank's part of the checkpoint of a step.
  [[nodiscard]] RankDirectory::Options part_of(std::uint64_t step) const;
  /// Makes that part, for writing, without a manifest of `engine`: what a killed process has left is removed.
  ///
  /// Errors: those of RankDirectory::open().
  [[nodiscard]] Result<std::unique_ptr<RankDirectory>> open(std::uint64_t step, std::uint32_t engine);
  /// Removes an incomplete part of the rank, as far as possible.
  void remove_own(std::uint64_t step, std::uint32_t engine);
  /// Errors: invalid_argument, if `latest` is something else than a file, which set_latest() could not replace.
  Result<void> check_latest();
  /// Makes `latest` name the checkpoint of a step, durably. Every rank may call it.
  Result<void> set_latest(std::uint64_t step);
  /// Removes the rank's parts of checkpoints of the run up to `step`, but for the newest `keep`. Returns their paths.
  [[nodiscard]] Result<std::vector<std::filesystem::path>> remove_old(std::uint64_t step,
                                                                      std::uint32_t engine,
                                                                      const std::array<std::uint64_t, 2>& run,
                                                                      std::uint32_t keep);
  /// The checkpoint that `latest` names; the directory itself, if it is one. Errors: not_found; invalid_argument, for a
  /// `latest` that names none.
  [[nodiscard]] Result<std::filesystem::path> find(const char* operation);

 private:
  Result<void> remove_part(std::uint64_t step, std::uint32_t engine);

  Options options_;
};

/// "tensors0": the file of an engine in a rank's part of a checkpoint.
[[nodiscard]] std::string tensors_name(std::uint32_t engine);
/// Whether the manifest is that of a checkpoint, whose tensors are in that file.
[[nodiscard]] bool is_checkpoint(const Manifest& manifest);

}  // namespace penstock::zero
