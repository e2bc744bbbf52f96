#pragma once

#include "tiers/io/sim_file.hpp"

#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

namespace penstock::tiers {

/// The directories of a simulated disk: the names of files, and which changes of names are durable.
class SimNames {
 public:
  using Path = std::filesystem::path;

  /// Creates a directory, durable at once.
  void make_directory(const Path& directory) { directories_.insert(normal(directory)); }
  /// Creates one that is durable once the one above it is synced.
  void create_directory(const Path& directory) {
    make_directory(directory);
    volatile_directories_.insert(normal(directory));
  }
  /// Removes an empty one, durably at once.
  void remove_directory(const Path& directory) {
    directories_.erase(normal(directory));
    volatile_directories_.erase(normal(directory));
  }
  [[nodiscard]] bool is_directory(const Path& path) const { return directories_.contains(normal(path)); }
  /// The file of that name, null when there is none.
  [[nodiscard]] std::shared_ptr<SimFile> find(const Path& path) const;
  [[nodiscard]] std::vector<std::string> list(const Path& directory) const;

  // Each is one change, which survives a power cut wholly or not at all.
  void add(const Path& path, std::shared_ptr<SimFile> file) { change({{}, normal(path), std::move(file)}); }
  void rename(const Path& from, const Path& to) { change({normal(from), normal(to), find(from)}); }
  void remove(const Path& path) { change({normal(path), {}, find(path)}); }

  /// Makes the changes in `directory` durable. A rename between two directories becomes durable when both were synced
  /// after it, or with a later change of one of its names.
  void sync(const Path& directory);
  /// Of the changes that sync() would apply to, loses an arbitrary subset and syncs the others. find() and list()
  /// return the lost ones until the next power cut.
  void lose_some(const Path& directory, std::uint64_t& random);
  /// Keeps the durable names and an arbitrary subset of the other changes, in directories that are kept; calls
  /// SimFile::lose_power() of each file.
  void lose_power(std::uint64_t& random);

  /// Removes "." and a trailing slash, so that a name has one spelling.
  [[nodiscard]] static Path normal(const Path& path);

 private:
  using Names = std::map<Path, std::shared_ptr<SimFile>>;
  struct Change {
    Path from, to;  // empty: the file had no name before, or has none after
    std::shared_ptr<SimFile> file;
    // Whether the directory of each name was synced after the change.
    bool from_synced = from.empty(), to_synced = to.empty();
    bool durable = false;

    [[nodiscard]] bool is_complete() const { return from_synced && to_synced; }
    [[nodiscard]] bool needs_sync_of(const Path& directory) const {
      return (!from_synced && from.parent_path() == directory) ||
             (!to_synced && to.parent_path() == directory);
    }
  };
  static void apply(const Change& change, Names& names);
  void change(Change change);
  /// Makes the complete changes durable, and each older change of the same names: applied after a power cut, it would
  /// undo the newer one.
  void make_durable();

  std::set<Path> directories_, volatile_directories_;
  Names names_, durable_;
  std::vector<Change> changes_;  // not durable, oldest first
};

}  // namespace penstock::tiers
