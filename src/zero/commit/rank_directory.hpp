#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {

/// The durable files of one rank: the subdirectory `rank0000` of each durable directory has its swap files, that of the
/// first one its manifests too. Locked as long as this object exists.
///
/// Used by one thread. Every call blocks, at most for `deadline`.
class RankDirectory {
 public:
  struct Options {
    tiers::FileSystem* files = &tiers::real_file_system();  ///< outlives the object
    swap::PathOptions copies =
        {};  ///< how engines access files that they add: all but directory, name and weight
    std::vector<std::filesystem::path> directories;  ///< of the run, on one drive each; at least one
    std::uint32_t rank = 0;
    TimePoint deadline = std::chrono::seconds(60);
  };

  /// Errors: unsupported, for a directory, or the one above it, whose files do not outlive the machine's power;
  /// deadline_exceeded.
  [[nodiscard]] static Result<void> check_lasts(const Options& options,
                                                const std::filesystem::path& directory);

  /// Makes the directories that do not exist, with mode 0700, and locks those of the rank.
  ///
  /// Errors: in_use, naming the process, while another run has one of them; not_found, for a directory above them;
  /// permission, no_space, deadline_exceeded.
  [[nodiscard]] static Result<std::unique_ptr<RankDirectory>> open(Options options);

  /// That of the rank in durable directory `index`.
  [[nodiscard]] std::filesystem::path path(std::size_t index) const;
  [[nodiscard]] const Options& options() const { return options_; }

  /// The generations of `engine` that have a manifest here, ascending. Whether one is whole, read() tells.
  [[nodiscard]] Result<std::vector<std::uint64_t>> generations(std::uint32_t engine) const;
  /// Manifest::files are where the files are now.
  ///
  /// Errors: those of Manifest::decode(); not_found.
  [[nodiscard]] Result<Manifest> read(std::uint32_t engine, std::uint64_t generation) const;
  /// Writes a manifest, durably: after a power cut it is there as a whole or not at all.
  ///
  /// Errors: no_space, io; there may be a manifest of this generation nevertheless.
  Result<void> write(const Manifest& manifest);
  /// Removes a manifest, durably, if it is there.
  Result<void> remove(std::uint32_t engine, std::uint64_t generation);

  /// The same for the directories of other ranks of the run, which other processes may have locked.
  [[nodiscard]] static Result<std::vector<std::uint32_t>> ranks(const Options& options);
  [[nodiscard]] static Result<std::vector<std::uint32_t>> engines_of(const Options& options,
                                                                     std::uint32_t rank);
  [[nodiscard]] static Result<std::vector<std::uint64_t>> generations_of(const Options& options,
                                                                         std::uint32_t rank,
                                                                         std::uint32_t engine);
  [[nodiscard]] static Result<Manifest> read_of(const Options& options, std::uint32_t rank,
                                                std::uint32_t engine, std::uint64_t generation);

 private:
  explicit RankDirectory(Options options) : options_(std::move(options)) {}

  Options options_;
  std::vector<tiers::DirectoryLock> locks_;
};

/// "rank0012".
[[nodiscard]] std::string rank_name(std::uint32_t rank);
/// "engine0-000000000012.manifest".
[[nodiscard]] std::string manifest_name(std::uint32_t engine, std::uint64_t generation);

}  // namespace penstock::zero
