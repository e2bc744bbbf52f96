#include "tiers/io/sim_names.hpp"

#include "kit/seeded_random.hpp"
#include "unit/tiers/io/small_disk.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace penstock::tiers {
namespace {

constexpr std::uint64_t seed_count = 500;

/// A disk with the directories "/a" and "/b", on which the names are durable that `make` has created.
struct TwoDirectories : SmallDisk {
  TwoDirectories() {
    for (const char* directory : {"/a", "/b"}) sim.make_directory(directory);
  }
  void make_durable(const char* name, const std::string& text) {
    make(name, text).sync().value();
    sync(path(name).parent_path().c_str());
  }
  void sync(const char* directory) { sim.sync_directory(directory).value(); }
};

TEST(SimNames, KeepsARenameToAnotherDirectoryOnceBothAreSynced) {
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    TwoDirectories disk;
    disk.make("/b/manifest", "old").sync().value();
    disk.make("/a/manifest.new", "new").sync().value();
    disk.sim.rename("/a/manifest.new", "/b/manifest").value();
    disk.sync("/a");
    disk.sync("/b");

    disk.sim.power_cut(seed);

    EXPECT_EQ(disk.find("/b/manifest"), "new") << "seed " << seed;
    EXPECT_EQ(disk.find("/a/manifest.new"), std::nullopt) << "seed " << seed;
  }
}

TEST(SimNames, RestoresNoNameThatWasRenamedBeforeItsDirectoryWasSynced) {
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    TwoDirectories disk;
    disk.make("/a/x", "text").sync().value();
    disk.sim.rename("/a/x", "/b/y").value();
    disk.sync("/b");
    disk.sync("/a");

    disk.sim.power_cut(seed);

    EXPECT_EQ(disk.find("/a/x"), std::nullopt) << "seed " << seed;
    EXPECT_EQ(disk.find("/b/y"), "text") << "seed " << seed;
  }
}

TEST(SimNames, MayLoseARenameToAnotherDirectoryOfWhichOneIsSynced) {
  for (const char* synced : {"/a", "/b"}) {
    std::set<std::string> found;
    for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
      TwoDirectories disk;
      disk.make_durable("/a/x", "text");
      disk.sim.rename("/a/x", "/b/y").value();
      disk.sync(synced);

      disk.sim.power_cut(seed);

      const bool moved = disk.find("/b/y").has_value();
      EXPECT_NE(moved, disk.find("/a/x").has_value()) << "seed " << seed;
      found.insert(moved ? "renamed" : "not renamed");
    }
    EXPECT_EQ(found, (std::set<std::string>{"not renamed", "renamed"})) << "synced " << synced;
  }
}

TEST(SimNames, MayLoseADirectoryUntilTheOneAboveIsSynced) {
  for (const bool synced : {false, true}) {
    std::set<bool> found;
    for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
      TwoDirectories disk;
      disk.sim.create_directory("/a/new").value();
      disk.make("/a/new/x", "text").sync().value();
      disk.sync("/a/new");
      if (synced) disk.sync("/a");

      disk.sim.power_cut(seed);

      const bool is_there = disk.sim.list("/a/new").has_value();
      EXPECT_EQ(disk.find("/a/new/x").has_value(), is_there) << "seed " << seed;
      found.insert(is_there);
    }
    EXPECT_EQ(found, synced ? std::set{true} : (std::set{false, true}));
  }
}

TEST(SimNames, ASyncKeepsTheChangesBeforeItAndNoOthers) {
  std::set<bool> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    TwoDirectories disk;
    disk.make_durable("/a/x", "text");
    disk.sync("/b");  // before the rename: says nothing about it
    disk.sim.rename("/a/x", "/b/y").value();
    disk.sync("/a");

    disk.sim.power_cut(seed);

    found.insert(disk.find("/b/y").has_value());
  }
  EXPECT_EQ(found, (std::set<bool>{false, true}));
}

/// What FileSystem promises of names, computed from the whole history: after a power cut, a name has the file that it
/// had after its last durable change, or after any later one.
class NamesModel {
 public:
  using Path = SimNames::Path;

  void change(const std::map<Path, SimFile*>& files) {
    std::set<Path> unsynced;
    for (const auto& [path, file] : files) unsynced.insert(path.parent_path());
    for (const auto& [path, file] : files) history_[path].push_back({changes_.size(), file});
    changes_.push_back(std::move(unsynced));
  }
  void sync(const Path& directory) {
    for (auto& unsynced : changes_) unsynced.erase(directory);
  }
  /// Changes that this sync may lose never count as durable.
  void fail_sync(const Path& directory) {
    for (auto& unsynced : changes_) {
      if (unsynced.contains(directory)) unsynced.insert("lost");
    }
  }
  [[nodiscard]] bool may_have(const Path& path, const SimFile* file) const {
    const auto found = history_.find(path);
    if (found == history_.end()) return file == nullptr;
    for (auto entry = found->second.rbegin(); entry != found->second.rend(); ++entry) {
      if (entry->file == file) return true;
      if (changes_[entry->change].empty()) return false;
    }
    return file == nullptr;
  }

 private:
  struct Entry {
    std::size_t change = 0;
    const SimFile* file = nullptr;
  };
  std::vector<std::set<Path>> changes_;  // of each, the directories that were not synced after it
  std::map<Path, std::vector<Entry>> history_;
};

TEST(SimNames, LeavesNoOlderFileUnderANameThanItsLastDurableOne) {
  const std::array<SimNames::Path, 4> paths{"/a/x", "/a/y", "/b/x", "/b/y"};
  for (std::uint64_t seed = 0; seed < 4 * seed_count; ++seed) {
    test::SeededRandom random(seed);
    std::uint64_t lost = ~seed;
    ByteCount used;
    std::vector<std::shared_ptr<SimFile>> files;  // kept, so that no address is used twice
    SimNames names;
    NamesModel model;
    for (std::uint64_t step = 0; step < 12; ++step) {
      const SimNames::Path &path = paths[random.below(4)], &other = paths[random.below(4)];
      const auto file = names.find(path);
      const std::uint64_t action = random.below(4);
      if (action == 0 && random.below(4) == 0) {
        names.lose_some(path.parent_path(), lost);
        model.fail_sync(path.parent_path());
      } else if (action == 0) {
        names.sync(path.parent_path());
        model.sync(path.parent_path());
      } else if (!file) {
        files.push_back(std::make_shared<SimFile>(0_B, /*named=*/true, used));
        names.add(path, files.back());
        model.change({{path, files.back().get()}});
      } else if (action == 1) {
        names.remove(path);
        model.change({{path, nullptr}});
      } else if (path != other) {
        names.rename(path, other);
        model.change({{path, nullptr}, {other, file.get()}});
      }
    }

    std::uint64_t power = seed;
    names.lose_power(power);

    for (const auto& path : paths) {
      EXPECT_TRUE(model.may_have(path, names.find(path).get())) << path << ", seed " << seed;
    }
  }
}

}  // namespace
}  // namespace penstock::tiers
