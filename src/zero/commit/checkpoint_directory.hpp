#pragma once

#include "zero/commit/rank_directory.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// A part of a checkpoint.
struct CheckpointPart {
  std::uint64_t step = 0, attempt = 0;  ///< as in its manifest
  std::uint32_t ranks = 0, rank = 0;    ///< 0 ranks: a killed process has left it without a manifest
};
/// The steps of the complete checkpoints, but for the last `keep`, and those of incomplete ones before the last
/// complete one, ascending; `parts` are those of all ranks.
[[nodiscard]] std::vector<std::uint64_t> old_checkpoints(std::span<const CheckpointPart> parts,
                                                         std::uint32_t keep);

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
    std::uint32_t ranks = 1;  ///< of the run now; each removes the same share of the parts of former ranks
    TimePoint deadline{};
  };
  explicit CheckpointDirectory(Options options) : options_(std::move(options)) {}

  [[nodiscard]] std::filesystem::path path_of(std::uint64_t step) const;
  /// The rank's part of the checkpoint of a step.
  [[nodiscard]] RankDirectory::Options part_of(std::uint64_t step) const;
  /// Makes that part, for writing, without a manifest of `engine`. What a killed process has left of the checkpoint is
  /// removed. Precondition: it is incomplete.
  ///
  /// Errors: those of RankDirectory::open().
  [[nodiscard]] Result<std::unique_ptr<RankDirectory>> open(std::uint64_t step, std::uint32_t engine);
  /// Removes an incomplete part of the rank, as far as possible.
  void remove_own(std::uint64_t step, std::uint32_t engine);
  /// Errors: invalid_argument, if the directory is a durable directory, a checkpoint or a part of one, or if `latest`
  /// is something else than a file, which set_latest() could not replace.
  Result<void> check_usable();
  /// Makes `latest` name the checkpoint of a step, durably. Every rank may call it.
  Result<void> set_latest(std::uint64_t step);
  /// This rank's share of the parts of checkpoints of a run, and of those without a manifest, up to `step`.
  [[nodiscard]] Result<std::vector<CheckpointPart>> parts(std::uint64_t step, std::uint32_t engine,
                                                          const RankDirectory::Run& run);
  /// Removes that share of one checkpoint, but for parts that a process has locked.
  Result<void> remove_parts(std::uint64_t step, std::uint32_t engine);
  /// The checkpoint that `latest` names; the directory itself, if it is one. Errors: not_found; invalid_argument, for a
  /// `latest` that names none.
  [[nodiscard]] Result<std::filesystem::path> find(const char* operation);

 private:
  /// Of one checkpoint, with the rank's own.
  [[nodiscard]] Result<std::vector<std::uint32_t>> share_of_ranks(std::uint64_t step) const;
  Result<void> remove_part(std::uint64_t step, std::uint32_t rank, std::uint32_t engine);

  Options options_;
};

/// "tensors0": the file of an engine in a rank's part of a checkpoint.
[[nodiscard]] std::string tensors_name(std::uint32_t engine);
/// Whether the manifest is that of a checkpoint, whose tensors are in that file.
[[nodiscard]] bool is_checkpoint(const Manifest& manifest);

}  // namespace penstock::zero
