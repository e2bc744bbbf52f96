#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/swap/runtime_options.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <array>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace penstock::zero {

/// What the name of a manifest says.
struct ManifestId {
  std::uint32_t engine = 0;
  std::uint64_t generation = 0;

  auto operator<=>(const ManifestId&) const = default;
};

/// The durable files of one rank: the subdirectory `rank0000` of each durable directory has its swap files, that of the
/// first one its manifests too. Locked as long as this object exists.
///
/// Once a run has a commit that is complete, each of these subdirectories has the run's number in a file `engine0.run`:
/// where it is, there must be a manifest of that run.
///
/// Used by one thread. Every call blocks, at most for `deadline` a file.
class RankDirectory {
 public:
  struct Options {
    tiers::FileSystem* files = &tiers::real_file_system();  ///< outlives the object
    swap::PathOptions copies =
        {};  ///< how engines access files that they add: all but directory and name; weight 0: measured
    std::vector<std::filesystem::path> directories;  ///< of the run, on one drive each; at least one
    std::uint32_t rank = 0;
    TimePoint deadline = std::chrono::seconds(60);
  };
  /// A random number, equal on all ranks.
  using Run = std::array<std::uint64_t, 2>;

  /// Makes the directories that do not exist, with mode 0700, and locks those of the rank: lock() and make().
  ///
  /// Errors: in_use, naming the process, while another run has one of them; not_found, for a directory above them;
  /// permission, no_space, deadline_exceeded.
  [[nodiscard]] static Result<std::unique_ptr<RankDirectory>> open(Options options);
  /// Locks the directories of the rank that are there, and makes nothing. Errors: those of open().
  [[nodiscard]] static Result<std::unique_ptr<RankDirectory>> lock(Options options);
  /// Makes and locks the others. Errors: those of open().
  Result<void> make();

  /// That of the rank in durable directory `index`.
  [[nodiscard]] std::filesystem::path path(std::size_t index) const;
  /// "swap0": the file there with tensors of all engines. Its number is of the directory, whatever its place in
  /// Options::directories, as long as there are files whose names have it. After make().
  [[nodiscard]] std::string swap_name(std::size_t index) const;
  /// "copies0-1": that with copies of what engine 0 keeps in memory.
  [[nodiscard]] std::string copies_name(std::uint32_t engine, std::size_t index) const;
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
  /// Removes the files, in each directory, the first one last, whose names `chosen` takes, durably.
  Result<void> remove_files(const std::function<bool(std::string_view name)>& chosen);
  /// Writes the number of the engine's run to each directory, durably, where it is not there.
  Result<void> mark(std::uint32_t engine, const Run& run);
  /// Removes it. Does nothing where it is not there.
  Result<void> unmark(std::uint32_t engine);

  /// The same for the directories of other ranks of the run, which other processes may have locked. Names are those in
  /// durable directory `index`, none if the rank has no directory there; ranks are ascending.
  [[nodiscard]] static Result<std::vector<std::uint32_t>> ranks(const Options& options);
  [[nodiscard]] static Result<std::vector<std::string>> names_of(const Options& options, std::uint32_t rank,
                                                                 std::size_t index = 0);
  /// What mark() has written to durable directory `index`, by engine.
  [[nodiscard]] static Result<std::map<std::uint32_t, Run>> marks_of(const Options& options,
                                                                     std::uint32_t rank,
                                                                     std::size_t index = 0);
  /// Ascending.
  [[nodiscard]] static Result<std::vector<ManifestId>> manifests_of(const Options& options,
                                                                    std::uint32_t rank);
  [[nodiscard]] static Result<std::vector<std::uint64_t>> generations_of(const Options& options,
                                                                         std::uint32_t rank,
                                                                         std::uint32_t engine);
  [[nodiscard]] static Result<Manifest> read_of(const Options& options, std::uint32_t rank,
                                                std::uint32_t engine, std::uint64_t generation);

 private:
  explicit RankDirectory(Options options)
      : options_(std::move(options)), locks_(options_.directories.size()) {}
  Result<void> lock(std::size_t index, bool makes_it);

  Options options_;
  std::vector<std::optional<tiers::DirectoryLock>> locks_;  // by directory
  std::vector<std::uint32_t> numbers_;                      // by directory
};

/// "rank0012".
[[nodiscard]] std::string rank_name(std::uint32_t rank);
/// "engine0-000000000012.manifest".
[[nodiscard]] std::string manifest_name(std::uint32_t engine, std::uint64_t generation);
/// The number of the durable directory in the name of a file with tensors: 1 in "swap1" and "copies0-1".
[[nodiscard]] std::optional<std::uint32_t> number_of_file(std::string_view name);
/// Whether the error of a read is what the file holds, and not that it could not be read.
[[nodiscard]] bool is_damage(const Error& error);

}  // namespace penstock::zero
