// Manifests that are there longer than they should: of commits that have failed, and of those before the last one.
#include "kit/scratch_directory.hpp"
#include "sim/durable_files.hpp"
#include "zero/commit/rank_directory.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <algorithm>
#include <barrier>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using tiers::FileSystemFault;
namespace fs = std::filesystem;

/// Parameters of many sizes, so that commits place their tensors at other offsets.
ModelLayout units_of_many_sizes(std::mt19937& random) {
  ModelLayout model;
  for (int unit = 0; unit < 6; ++unit)
    model.units.push_back({.name = "unit" + std::to_string(unit),
                           .parameters = {{"weight", ElementCount(1000 + random() % 60'000), 0}}});
  return model;
}

fs::path manifest_in(const fs::path& directory, std::uint64_t generation) {
  return directory / "rank0000" / manifest_name(0, generation);
}

void train_and_commit(const OneRank& run) {
  run.train();
  const auto committed = run.engine().commit();
  ASSERT_TRUE(committed) << committed.error().message();
}

void expect_resumed(const Config& config, const ModelLayout& model, const std::string& digest) {
  const auto run = OneRank::create(config, model);
  ASSERT_TRUE(run) << run.error().message();
  const auto resumed = run->engine().resume();
  ASSERT_TRUE(resumed) << resumed.error().message();
  ASSERT_TRUE(*resumed);
  EXPECT_EQ(run->engine().digest().value(), digest);
}

// A drive that did not answer in time wrote it later.
TEST(SupersededManifest, MayAppearAfterLaterCommits) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    for (std::uint32_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE(std::string(to_string(to)) + ", seed " + std::to_string(seed));
      std::mt19937 random(seed);
      const ScratchDirectory scratch;
      Config config = durable_config(scratch.path(), to);
      config.penstock.tile_elements = ElementCount(16384 * (1 + random() % 3));
      const ModelLayout model = units_of_many_sizes(random);
      const std::uint64_t late = 1 + random() % 3, commits = late + 2 + random() % 4;
      const fs::path name = manifest_in(scratch.path() / "run", late), aside = scratch.path() / "aside";
      std::string digest;
      {
        const OneRank run = OneRank::create(config, model).value();
        run.initialize();
        for (std::uint64_t generation = 1; generation <= commits; ++generation) {
          train_and_commit(run);
          if (generation == late) fs::copy_file(name, aside);
        }
        digest = run.engine().digest().value();
      }
      fs::copy_file(aside, name);
      expect_resumed(config, model, digest);
      EXPECT_FALSE(fs::exists(name));
      if (HasFailure()) return;
    }
  }
}

/// A run in one directory, after its first commit.
class FailedCommit : public testing::TestWithParam<OffloadDevice> {
 protected:
  using Operation = FileSystemFault::Operation;

  void SetUp() override {
    run_.initialize();
    train_and_commit(run_);
  }
  void fail(Operation operation, std::uint64_t after = 0) {
    files_.add(FileSystemFault::fail(operation, files_.accepted(operation) + after, EIO));
  }
  void fail_to_remove() {
    fail(Operation::remove, 1);
  }  // the first one is of what a replacement may have left
  /// One whose manifest is at its place then. Returns the digest of its states.
  std::string fail_with_a_manifest() {
    run_.train();
    std::string digest = run_.engine().digest().value();
    fail_to_remove();
    fail(Operation::sync_directory);
    EXPECT_FALSE(run_.engine().commit());
    return digest;
  }
  /// The manifest is at its place when the sync of its directory fails.
  void commit_and_fail() {
    run_.train();
    fail(Operation::sync_directory);
    const auto failed = run_.engine().commit();
    ASSERT_FALSE(failed);
    code_ = failed.error().code();
  }

  ErrorCode code_ = {};  // of the last failure
  ScratchDirectory scratch_;
  Config config_ = durable_config(scratch_.path(), GetParam());
  ModelLayout model_ = two_units(500'000);  // the disk's rounded size has no room for a third commit
  tiers::FaultFileSystem files_{tiers::real_file_system(), {}};
  OneRank run_ =
      OneRank::create(config_, model_,
                      {.durable_files = [&](swap::PathOptions& path) { path.file_system = &files_; }})
          .value();
};

TEST_P(FailedCommit, KeepsNoBytes) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    commit_and_fail();
    ASSERT_EQ(to_string(code_), to_string(ErrorCode::io));
  }
  train_and_commit(run_);
}

// A power cut brings a manifest back whose removal was not made durable. Its bytes take the room of the next steps.
TEST_P(FailedCommit, KeepsItsBytesWhereItsManifestMayComeBack) {
  const fs::path second = manifest_in(scratch_.path() / "run", 2), aside = scratch_.path() / "aside";
  const std::string digest = fail_with_a_manifest();
  fs::rename(second, aside);
  for (std::uint64_t later = 0; later < 500; ++later) fail(Operation::sync_directory, later);

  std::string error;
  try {
    for (int attempt = 0; attempt < 3 && error.empty(); ++attempt) {
      run_.train();
      fail(Operation::sync_directory);
      error = run_.engine().commit().error().message();
      if (error.find("no swap file has room") == std::string::npos) error = {};
    }
  } catch (const BadResult& failed) {
    error = failed.what();
  }
  EXPECT_NE(error.find("the room is kept by a commit that failed"), std::string::npos) << error;
  EXPECT_NE(error.find(second.filename().string()), std::string::npos) << error;

  run_ = {};
  fs::copy_file(aside, second);
  expect_resumed(config_, model_, digest);
}

// The disk has room for two commits, or for one and the steps after it.
TEST_P(FailedCommit, LeavesRoomForTheNextStepsOnceItsManifestIsRemoved) {
  fail_to_remove();
  commit_and_fail();
  for (int step = 0; step < 3; ++step) run_.train();
  train_and_commit(run_);
}

TEST_P(FailedCommit, LeavesRoomForTheNextStepsWhereTheDirectoryWasAway) {
  const fs::path run = scratch_.path() / "run", away = scratch_.path() / "away";
  for (int steps = 0; steps < 5; ++steps) {
    SCOPED_TRACE(steps);
    run_.train();
    fs::rename(run, away);
    EXPECT_FALSE(run_.engine().commit());
    for (int step = 0; step < steps; ++step) run_.train();
    fs::rename(away, run);
    for (int step = 0; step < steps; ++step) run_.train();
    train_and_commit(run_);
  }
}

// Its manifest is in the one that is away, and is read once that is back.
TEST_P(FailedCommit, KeepsItsBytesWhileAnotherDirectoryIsInItsPlace) {
  const fs::path run = scratch_.path() / "run", away = scratch_.path() / "away";
  const std::string digest = fail_with_a_manifest();
  fs::rename(run, away);
  fs::create_directories(run / "rank0000");
  try {
    for (int step = 0; step < 3; ++step) run_.train();
  } catch (const BadResult&) {  // on disk: no room
  }
  fs::remove_all(run);
  fs::rename(away, run);

  run_ = {};
  expect_resumed(config_, model_, digest);
}

INSTANTIATE_TEST_SUITE_P(Of, FailedCommit, testing::Values(OffloadDevice::nvme, OffloadDevice::cpu),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// A failed first commit may have left its manifest on some ranks: all of them keep the number of its run.
TEST(SupersededManifest, OfAFailedFirstCommitIsOfTheRunThatGoesOn) {
  const ScratchDirectory scratch;
  const Config config = durable_config(scratch.path(), OffloadDevice::cpu);
  tiers::FaultFileSystem files(tiers::real_file_system(), {});
  std::barrier together(2);
  const auto run = [&](const auto& body) {
    const auto group = InProcessGroup::create(2).value();
    std::vector<std::thread> ranks;
    for (std::uint32_t rank = 0; rank < 2; ++rank) {
      ranks.emplace_back([&, rank] {
        Rank::Options options{.config = config,
                              .model = two_units(),
                              .identity = RankIdentity::local(rank, 2),
                              .group = in_process_membership(group, rank)};
        if (rank == 0)
          options.hooks.durable_files = [&](swap::PathOptions& path) { path.file_system = &files; };
        const auto made = Rank::create(std::move(options));
        ASSERT_TRUE(made) << made.error().message();
        body(rank, (*made)->engine());
      });
    }
    for (std::thread& rank : ranks) rank.join();
  };
  run([&](std::uint32_t rank, Engine& engine) {
    using Operation = FileSystemFault::Operation;
    engine.initialize(OneRank::fill).value();
    if (rank == 0) {
      files.add(
          FileSystemFault::fail(Operation::sync_directory, files.accepted(Operation::sync_directory), EIO));
      files.add(FileSystemFault::fail(Operation::remove, files.accepted(Operation::remove) + 1, EIO));
    }
    together.arrive_and_wait();
    EXPECT_FALSE(engine.commit());
    engine.initialize(OneRank::fill).value();
    for (int commit = 0; commit < 2; ++commit) EXPECT_TRUE(engine.commit());
  });
  run([](std::uint32_t, Engine& engine) {
    const auto resumed = engine.resume();
    ASSERT_TRUE(resumed) << resumed.error().message();
    EXPECT_TRUE(*resumed);
  });
}

// The second directory's drive is full.
TEST(SupersededManifest, IsRemovedWhereTheNumberOfTheRunCannotBeWritten) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "a", scratch.path() / "b"});
  const OneRank run = OneRank::create(config).value();
  fs::create_directories(scratch.path() / "b" / "rank0000" / "engine0.run.new" / "in the way");
  run.initialize();
  run.train();
  ASSERT_EQ(run.engine().commit().value().notes.size(), 1u);
  train_and_commit(run);
  EXPECT_FALSE(fs::exists(manifest_in(scratch.path() / "a", 1)));
  fs::remove_all(scratch.path() / "b" / "rank0000" / "engine0.run.new");
  EXPECT_TRUE(run.engine().commit().value().notes.empty());
  EXPECT_TRUE(fs::exists(scratch.path() / "b" / "rank0000" / "engine0.run"));
}

}  // namespace
}  // namespace penstock::zero::test
