// What must not lose a commit.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"
#include "sim/one_rank.hpp"
#include "sim/saving_runs.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using Operation = tiers::FileSystemFault::Operation;
namespace fs = std::filesystem;

Config config_of(std::vector<fs::path> directories, OffloadDevice to = OffloadDevice::nvme) {
  Config config = durable_config(directories.front(), to);
  config.penstock.durable_directories = std::move(directories);
  return config;
}

RankHooks on(tiers::FileSystem& files) {
  return {.runtime_options =
              [&files](swap::RuntimeOptions& options) {
                for (swap::PathOptions& path : options.paths) path.file_system = &files;
              },
          .durable_files = [&files](swap::PathOptions& path) { path.file_system = &files; }};
}

void expect_whole(const Config& config, const std::string& digest) {
  const auto run = OneRank::create(config);
  ASSERT_TRUE(run) << run.error().message();
  const auto resumed = run->engine().resume();
  ASSERT_TRUE(resumed) << resumed.error().message();
  ASSERT_TRUE(*resumed) << "there is no commit";
  EXPECT_EQ(run->engine().digest().value(), digest);
}

TEST(CommitSurvives, AnErrorOfAnyCallOfAStart) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    std::uint64_t failed = 0;
    for (std::uint64_t call = 0;; ++call) {
      SCOPED_TRACE("call " + std::to_string(call));
      const ScratchDirectory scratch;
      const Config config = config_of({scratch.path() / "run"}, to);
      const std::string digest = commit_one_step(config);
      {
        tiers::FaultFileSystem files(tiers::real_file_system(),
                                     {tiers::FileSystemFault::fail({}, call, EMFILE)});
        const auto run = OneRank::create(config, two_units(), on(files));
        if (run) {
          const auto resumed = run->engine().resume();
          if (resumed && !*resumed) run->initialize();
          if (resumed) {
            run->train();
            run->train();
          }
          failed += resumed ? 0u : 1u;
        } else {
          EXPECT_NE(run.error().os_error(), 0) << run.error().message();
          ++failed;
        }
        if (files.injected() == 0) break;
      }
      expect_whole(config, digest);
      if (HasFailure()) return;
    }
    EXPECT_GT(failed, 10u);
  }
}

TEST(CommitSurvives, AManifestThatAppearsAfterItsDeadline) {
  const ScratchDirectory scratch;
  Config config = config_of({scratch.path() / "run"});
  config.penstock.io_deadline_seconds = 1;
  std::string digest;
  {
    // The third rename is that of manifest 2; the second one writes the number of the run. Never destroyed: the late
    // call may still use it.
    static auto* const files = new tiers::FaultFileSystem(tiers::real_file_system(),
                                                          {{.operation = Operation::rename,
                                                            .occurrence = 2,
                                                            .effect = tiers::FileSystemFault::Effect::delay,
                                                            .delay = std::chrono::milliseconds(1500)}});
    const OneRank run = OneRank::create(config, two_units(), on(*files)).value();
    run.initialize();
    (void)run.engine().commit().value();
    run.train();
    digest = run.engine().digest().value();
    const auto late = run.engine().commit();
    EXPECT_EQ(late.error().code(), ErrorCode::deadline_exceeded) << late.error().message();
    const fs::path manifest = scratch.path() / "run/rank0000/engine0-000000000002.manifest";
    for (int i = 0; i < 1000 && !fs::exists(manifest); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    ASSERT_TRUE(fs::exists(manifest));
    EXPECT_EQ(run.engine().status(), Engine::Status::ready);
    run.train();
    run.train();
  }
  expect_whole(config, digest);
}

/// The ranks do not count a commit as complete, and a later process may find it.
TEST(CommitSurvives, OneThatHasFailedAndWhoseManifestCannotBeRemoved) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "run"});
  std::string second;
  {
    tiers::FaultFileSystem files(tiers::real_file_system(), {});
    const auto fail_next = [&](Operation operation, std::uint64_t after) {
      files.add(tiers::FileSystemFault::fail(operation, files.accepted(operation) + after, EIO));
    };
    const OneRank run = OneRank::create(config, two_units(), on(files)).value();
    run.initialize();
    (void)run.engine().commit().value();
    run.train();
    second = run.engine().digest().value();
    fail_next(Operation::sync_directory, 0);
    // The first one is of the unfinished file. Later calls try again.
    for (std::uint64_t attempt = 1; attempt < 100; ++attempt) fail_next(Operation::remove, attempt);
    EXPECT_EQ(run.engine().commit().error().code(), ErrorCode::io);
    run.train();
    EXPECT_GE(files.injected(), 3u);
  }
  expect_whole(config, second);
}

/// Two engines of a rank have a file in common.
TEST(CommitSurvives, AProcessWithoutItsEngine) {
  const ScratchDirectory scratch;
  const Config config = config_of({scratch.path() / "run"});
  const auto both = [&] {
    return Rank::create({.config = config, .model = two_units(), .beside = {{config, two_units()}}}).value();
  };
  std::vector<std::string> digests;
  {
    const auto rank = both();
    for (Engine* engine : rank->engines()) {
      engine->initialize(OneRank::fill).value();
      (void)engine->commit().value();
      digests.push_back(engine->digest().value());
    }
  }
  {
    const OneRank first = OneRank::create(config).value();
    ASSERT_TRUE(first.engine().resume().value());
    for (int i = 0; i < 3; ++i) {
      first.train();
      (void)first.engine().commit().value();
    }
    digests[0] = first.engine().digest().value();
  }
  const auto rank = both();
  for (std::size_t i = 0; i < 2; ++i) {
    const auto resumed = rank->engines()[i]->resume();
    ASSERT_TRUE(resumed) << resumed.error().message();
    EXPECT_EQ(rank->engines()[i]->digest().value(), digests[i]);
  }
}

TEST(CommitSurvives, AStartWithoutTheDriveOfItsManifests) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    const ScratchDirectory scratch;
    const fs::path a = scratch.path() / "a", b = scratch.path() / "b";
    const std::string digest = commit_one_step(config_of({a, b}, to));
    fs::rename(a, scratch.path() / "away");
    for (const bool is_mount_point : {false, true}) {
      if (is_mount_point) fs::create_directory(a);
      for (const auto& directories : {std::vector{a, b}, {b, a}, {b}}) {
        const auto refused = OneRank::create(config_of(directories, to));
        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code(), ErrorCode::not_found) << refused.error().message();
        EXPECT_NE(refused.error().message().find((b / "rank0000").string()), std::string::npos)
            << refused.error().message();
        EXPECT_EQ(fs::exists(a), is_mount_point) << "a refusal makes nothing";
        EXPECT_TRUE(!is_mount_point || fs::is_empty(a));
      }
    }
    fs::remove_all(a);
    fs::rename(scratch.path() / "away", a);
    expect_whole(config_of({a, b}, to), digest);
  }
}

TEST(CommitSurvives, AStartWithoutAPartOfTheFirstOne) {
  const ScratchDirectory scratch;
  const fs::path directory = scratch.path() / "run", away = scratch.path() / "away";
  const RunOptions options =
      saving(saved_run(), directory, [](Engine& engine, std::uint32_t) -> Result<void> {
        if (engine.completed_steps() == 2) PENSTOCK_TRY(engine.commit());
        return ok();
      });
  const RunResult whole = train(options);
  ASSERT_FALSE(whole.error) << whole.error->message();
  for (const char* part : {"rank0001", "rank0000"}) {
    fs::rename(directory / part, away);
    const RunResult refused = train(resuming(durable(saved_run(), directory)));
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->code(), ErrorCode::corrupted) << refused.error->message();
    EXPECT_FALSE(fs::exists(directory / part));
    fs::rename(away, directory / part);
  }
  const RunResult again = train(resuming(durable(saved_run(), directory)));
  ASSERT_FALSE(again.error) << again.error->message();
  EXPECT_EQ(again.digest, whole.digest);
}

/// A process was killed when it had made a swap file and not yet its name durable.
TEST(CommitSurvives, APowerCutThatTakesWhatAKilledProcessHasNotSynced) {
  for (const std::uint64_t seed : penstock::test::seeds(1, 20)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options{.ranks = 1, .micro_batches = 1, .steps = 4, .seed = seed};
    options.config.stage = 3;
    options.config.offload_optimizer.device = options.config.offload_param.device = OffloadDevice::nvme;
    tiers::SimDisk disk{tiers::SimDisk::Options()};
    for (const char* directory : {"/", "/durable", "/second", "/durable/rank0000", "/second/rank0000"})
      disk.make_directory(directory);
    ASSERT_TRUE(disk.create("/second/rank0000/swap1", 1_MiB, tiers::DirectIo::off));
    options.disks = {&disk};
    make_durable(options, {"/durable", "/second"}, Commits::at_once);
    const RunResult first = train(options);
    ASSERT_FALSE(first.error) << first.error->message();

    disk.power_cut(seed);

    const RunResult second = train(options);
    ASSERT_FALSE(second.error) << second.error->message();
    EXPECT_EQ(second.digest, first.digest);
  }
}

TEST(CommitSurvives, AnotherDirectoryInThePlaceOfOne) {
  const ScratchDirectory scratch;
  const fs::path x = scratch.path() / "x", a = scratch.path() / "a", c = scratch.path() / "c";
  const std::string digest = commit_one_step(config_of({x, a}));
  for (const auto& directories : {std::vector{x, c}, {c, x}, {x, c, a}, {a, c, x}, {x}})
    expect_whole(config_of(directories), digest);
}

/// A process that was killed in a commit had one more drive, which has failed since.
TEST(CommitSurvives, ALaterOneThatIsIncompleteAndRefersToALostDrive) {
  const ScratchDirectory scratch;
  const fs::path a = scratch.path() / "a", c = scratch.path() / "c";
  std::mutex mutex;
  std::vector<std::string> notes;
  const auto commit = [&](std::vector<fs::path> directories, bool begins) {
    RunOptions options{.ranks = 2, .micro_batches = 1, .steps = 1};
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.penstock.durable_directories = std::move(directories);
    if (!begins) {
      options = resuming(options);
      options.restore = [&](Engine& engine) -> Result<void> {
        PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
        const std::lock_guard lock(mutex);
        notes.insert(notes.end(), resumed.value().notes.begin(), resumed.value().notes.end());
        return ok();
      };
    }
    options.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit());
      return ok();
    };
    return train(options);
  };
  const std::string first = "engine0-000000000001.manifest", second = "engine0-000000000002.manifest";
  ASSERT_FALSE(commit({a}, true).error);
  for (const char* rank : {"rank0000", "rank0001"})
    fs::copy_file(a / rank / first, scratch.path() / (rank + first));
  ASSERT_FALSE(commit({a, c}, false).error);
  fs::remove(a / "rank0001" / second);
  for (const char* rank : {"rank0000", "rank0001"})
    fs::copy_file(scratch.path() / (rank + first), a / rank / first);
  fs::remove_all(c);

  const RunResult again = commit({a}, false);

  ASSERT_FALSE(again.error) << again.error->message();
  ASSERT_EQ(notes.size(), 2u) << "on each rank";
  EXPECT_NE(notes[0].find("commit 2 of 2 ranks, which has no part of rank 1"), std::string::npos) << notes[0];
}

}  // namespace
}  // namespace penstock::zero::test
