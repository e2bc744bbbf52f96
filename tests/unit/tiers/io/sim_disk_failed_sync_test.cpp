#include <penstock/tiers/io/sim_disk.hpp>

#include "unit/tiers/io/small_disk.hpp"

#include <gtest/gtest.h>
#include <cerrno>
#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace penstock::tiers {
namespace {

using Names = SmallDisk::Names;

constexpr std::uint64_t seed_count = 2000;

/// The file "/d/swap" of two sectors, 'a' durable and 'b' written.
struct Overwritten : SmallDisk {
  Overwritten() {
    file.sync().value();
    sim.sync_directory("/d").value();
    write(file, 0, std::string(1024, 'b'));
  }
  File file = make("swap", std::string(1024, 'a'));
};

TEST(SimDiskFailedSync, LosesAnySectorsOfAFileWhateverSyncSucceedsLater) {
  std::set<std::string> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    Overwritten disk;
    disk.sim.fail_syncs(1, seed);

    EXPECT_EQ(disk.file.sync().error().os_error(), EIO);
    EXPECT_TRUE(disk.file.sync());
    EXPECT_EQ(disk.text_of("swap"), std::string(1024, 'b'));
    disk.sim.power_cut(seed);

    const std::string text = disk.text_of("swap");
    EXPECT_EQ(text, std::string(512, text.at(0)) + std::string(512, text.at(512))) << "seed " << seed;
    found.insert({text[0], text[512]});
  }
  EXPECT_EQ(found, (std::set<std::string>{"aa", "ab", "ba", "bb"}));
}

TEST(SimDiskFailedSync, LosesNothingThatIsWrittenAfterIt) {
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    Overwritten disk;
    disk.sim.fail_syncs(1, seed);
    EXPECT_FALSE(disk.file.sync());

    SmallDisk::write(disk.file, 0, std::string(1024, 'c'));
    disk.file.sync().value();
    disk.sim.power_cut(seed);

    EXPECT_EQ(disk.text_of("swap"), std::string(1024, 'c')) << "seed " << seed;
  }
}

TEST(SimDiskFailedSync, LosesAnyNamesWhateverSyncSucceedsLater) {
  std::set<Names> found;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("a", "").sync().value();
    disk.sim.sync_directory("/d").value();
    disk.sim.remove("/d/a").value();
    disk.make("b", "").sync().value();
    disk.sim.fail_syncs(1, seed);

    EXPECT_EQ(disk.sim.sync_directory("/d").error().os_error(), EIO);
    EXPECT_TRUE(disk.sim.sync_directory("/d"));
    EXPECT_EQ(disk.names(), Names{"b"});
    disk.sim.power_cut(seed);

    found.insert(disk.names());
  }
  EXPECT_EQ(found, (std::set<Names>{{}, {"a"}, {"a", "b"}, {"b"}}));
}

TEST(SimDiskFailedSync, LosesARenameBetweenDirectoriesByEitherOfThem) {
  for (const auto& [fails, succeeds] : {std::pair("/d", "/e"), std::pair("/e", "/d")}) {
    std::set<std::optional<std::string>> found;
    for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
      SmallDisk disk;
      disk.sim.make_directory("/e");
      disk.make("x", "text").sync().value();
      disk.sim.sync_directory("/d").value();
      disk.sim.rename("/d/x", "/e/y").value();
      disk.sim.sync_directory(succeeds).value();
      disk.sim.fail_syncs(1, seed);

      EXPECT_FALSE(disk.sim.sync_directory(fails));
      for (const char* directory : {fails, succeeds}) disk.sim.sync_directory(directory).value();
      disk.sim.power_cut(seed);

      EXPECT_NE(disk.find("x"), disk.find("/e/y")) << "seed " << seed;
      found.insert(disk.find("/e/y"));
    }
    EXPECT_EQ(found, (std::set<std::optional<std::string>>{std::nullopt, "text"})) << "failed " << fails;
  }
}

TEST(SimDiskFailedSync, HappensToAsManySyncsAsWereNamed) {
  SmallDisk disk;
  File file = disk.make("swap", "text"), other = disk.make("other", "text");

  disk.sim.fail_syncs(3, /*seed=*/1);
  EXPECT_EQ(disk.sim.sync_directory("/missing").error().code(), ErrorCode::not_found);

  EXPECT_EQ(file.sync().error().code(), ErrorCode::io);
  EXPECT_EQ(disk.sim.sync_directory("/d").error().code(), ErrorCode::io);
  EXPECT_EQ(other.sync().error().code(), ErrorCode::io);
  EXPECT_TRUE(file.sync() && disk.sim.sync_directory("/d") && other.sync());
}

enum class Step { sync_file, sync_directory };
enum class AfterError { sync_again, write_another_file };

/// Replaces the manifest 'a' by 'b' while one sync fails.
struct Replacement {
  bool run() {
    for (const char* name : {"/d/manifest.1", "/d/manifest.2"}) {
      if (write(name)) return true;
      if (after_error == AfterError::sync_again) return false;
    }
    return false;
  }
  Result<void> write(const char* name) {
    PENSTOCK_TRY_ASSIGN(File file, disk.sim.create(name, 0_B, DirectIo::off));
    PENSTOCK_TRY(file.write(FileOffset(0), ConstHostSpan(std::span(text))));
    PENSTOCK_TRY(sync(Step::sync_file, [&] { return file.sync(); }));
    PENSTOCK_TRY(disk.sim.rename(name, "/d/manifest"));
    return sync(Step::sync_directory, [&] { return disk.sim.sync_directory("/d"); });
  }
  template <class Call>
  Result<void> sync(Step step, const Call& call) {
    if (step == fails && !std::exchange(failed, true)) disk.sim.fail_syncs(1, seed);
    auto synced = call();
    return !synced && after_error == AfterError::sync_again ? call() : synced;
  }

  SmallDisk& disk;
  const Step fails;
  const AfterError after_error;
  const std::uint64_t seed;
  const std::string text = std::string(3000, 'b');
  bool failed = false;
};

/// At how many seeds the manifest is not the new one after a replacement that was successful.
std::uint64_t seeds_that_lose_data(Step fails, AfterError after_error) {
  std::uint64_t lost = 0;
  for (std::uint64_t seed = 0; seed < seed_count; ++seed) {
    SmallDisk disk;
    disk.make("manifest", std::string(3000, 'a')).sync().value();
    disk.sim.sync_directory("/d").value();
    Replacement replacement{disk, fails, after_error, seed};
    EXPECT_TRUE(replacement.run() && replacement.failed);

    disk.sim.power_cut(seed);

    if (disk.find("manifest") != replacement.text) ++lost;
  }
  return lost;
}

TEST(SimDiskFailedSync, MakesAProtocolLoseDataThatSyncsAgain) {
  EXPECT_GT(seeds_that_lose_data(Step::sync_file, AfterError::sync_again), seed_count / 20);
  EXPECT_GT(seeds_that_lose_data(Step::sync_directory, AfterError::sync_again), seed_count / 20);
}

TEST(SimDiskFailedSync, MakesAProtocolLoseNothingThatWritesAnotherFile) {
  EXPECT_EQ(seeds_that_lose_data(Step::sync_file, AfterError::write_another_file), 0u);
  EXPECT_EQ(seeds_that_lose_data(Step::sync_directory, AfterError::write_another_file), 0u);
}

}  // namespace
}  // namespace penstock::tiers
