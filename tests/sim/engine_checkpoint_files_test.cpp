// A checkpoint is complete by itself, and is loaded with the same bits.
#include "kit/cluster.hpp"
#include "kit/mounted_file_system.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"
#include "sim/saving_runs.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::MountedFileSystem;
using penstock::test::ScratchDirectory;
using penstock::test::SeededRandom;

void flip_byte(const std::filesystem::path& name) {
  std::fstream file(name, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(100);
  const char byte = static_cast<char>(file.get() ^ 1);
  file.seekp(100);
  file.put(byte);
}

TEST(SaveCheckpoint, IsLoadedWithTheBitsOfARunThatNeverStopped) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 30)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RunOptions options = random_continued_run(seed + 500, 1 + seed % 3);
    const RunResult whole = train(options);
    ASSERT_FALSE(whole.error) << whole.error->message();
    const ScratchDirectory scratch;
    const auto checkpoints = scratch.path() / "checkpoints";
    const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(const auto saved, engine.save_checkpoint(checkpoints));
      EXPECT_EQ(saved.path, checkpoints / ("global_step" + std::to_string(engine.completed_steps())));
      EXPECT_EQ(saved.cloned + saved.written > 0_B, saved.commit.copied + saved.commit.kept > 0_B);
      return ok();
    };
    const RunResult saved = train(saving(options, scratch.path() / "run", save));
    ASSERT_FALSE(saved.error) << saved.error->message();
    EXPECT_EQ(saved.digest, whole.digest);
    std::filesystem::remove_all(scratch.path() / "run");

    EXPECT_EQ(text_of(checkpoints / "latest"), "global_step3");
    for (const auto& from : {checkpoints, checkpoints / "global_step1"}) {
      const RunResult loaded = train(loading(options, from));
      ASSERT_FALSE(loaded.error) << loaded.error->message();
      EXPECT_EQ(loaded.digest, whole.digest) << from;
      EXPECT_EQ(loaded.parameters, whole.parameters) << from;
    }
  }
}

TEST(SaveCheckpoint, IsLoadedByOtherRanksStagesAndTiers) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 15)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_continued_run(seed + 700, 1 + seed % 4);
    continued_formats[seed % 2].set(options.config);
    give_random_memory(options, seed);
    const ScratchDirectory scratch;
    std::string digest;
    const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
      PENSTOCK_TRY(engine.save_checkpoint(scratch.path() / "checkpoints"));
      PENSTOCK_TRY_ASSIGN(auto now, engine.digest());
      if (rank == 0) digest = now;
      return ok();
    };
    const RunResult saved = train(saving(options, scratch.path() / "run", save));
    ASSERT_FALSE(saved.error) << saved.error->message();

    RunOptions other = random_continued_run(seed + 900, 1 + (seed + 1) % 4);
    other.model = options.model;
    continued_formats[(seed + 1) % 2].set(other.config);
    give_random_memory(other, seed);
    other.steps = 3;  // those that were saved
    const RunResult loaded = train(loading(other, scratch.path() / "checkpoints"));

    ASSERT_FALSE(loaded.error) << loaded.error->message();
    EXPECT_EQ(loaded.digest, digest);
  }
}

TEST(SaveCheckpoint, WantsTheSameArgumentsOnAllRanks) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
    if (engine.completed_steps() == 1) {
      PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
      return ok();
    }
    const auto other = rank == 0 ? checkpoints : scratch.path() / "other";
    EXPECT_EQ(engine.save_checkpoint(other, {.keep = 1}).error().code(), ErrorCode::invalid_argument);
    EXPECT_EQ(engine.save_checkpoint(checkpoints, {.keep = 1 + rank}).error().code(),
              ErrorCode::invalid_argument);
    return ok();
  };
  const RunOptions options = saved_run();
  const RunResult result = train(saving(options, scratch.path() / "run", save));

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(text_of(checkpoints / "latest"), "global_step1");
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "other"));
  EXPECT_EQ(train(loading(options, checkpoints)).digest, result.digest);
}

TEST(SaveCheckpoint, RefusesToReplaceOne) {
  const ScratchDirectory scratch;
  const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
    EXPECT_TRUE(engine.save_checkpoint(scratch.path() / "checkpoints"));
    const auto again = engine.save_checkpoint(scratch.path() / "checkpoints");
    EXPECT_EQ(again.error().code(), ErrorCode::already_exists) << rank;
    return ok();
  };
  const RunOptions options = saved_run();
  const RunResult result = train(saving(options, scratch.path() / "run", save));
  ASSERT_FALSE(result.error) << result.error->message();

  const RunResult loaded = train(loading(options, scratch.path() / "checkpoints"));
  ASSERT_FALSE(loaded.error) << loaded.error->message();
  EXPECT_EQ(loaded.digest, result.digest);
}

TEST(SaveCheckpoint, ReplacesWhatAKilledProcessHasLeft) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints", checkpoint = checkpoints / "global_step1";
  int commits = 2;  // with that of save_checkpoint()
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    for (int i = 1; i < commits; ++i) PENSTOCK_TRY(engine.commit());
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
    return ok();
  };
  const RunOptions options = saved_run();
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", save)).error);
  for (const char* name : {"rank0000", "rank0001"}) {  // one part is not complete, or there is none
    std::filesystem::remove_all(scratch.path() / "run");
    std::filesystem::remove_all(checkpoints / "global_step2");
    std::filesystem::remove_all(checkpoints / "global_step3");
    std::filesystem::remove_all(checkpoint / name);
    ++commits;

    const RunResult again = train(saving(options, scratch.path() / "run", save));

    ASSERT_FALSE(again.error) << again.error->message();
    EXPECT_EQ(train(loading(options, checkpoint)).digest, again.digest);
    for (const char* part : {"rank0000", "rank0001"})
      EXPECT_EQ(std::distance(std::filesystem::directory_iterator(checkpoint / part), {}), 3) << part;
  }
}

TEST(SaveCheckpoint, ReplacesNoneWhoseManifestIsDamaged) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
    return ok();
  };
  RunOptions options = saved_run();
  options.steps = 2;
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", save)).error);
  const auto manifest = checkpoints / "global_step1" / "rank0001" / "engine0-000000000001.manifest";
  const auto size = std::filesystem::file_size(manifest);
  std::filesystem::resize_file(manifest, 100);

  const RunResult another = train(saving(options, scratch.path() / "another", save));

  ASSERT_TRUE(another.error);
  EXPECT_EQ(another.error->code(), ErrorCode::corrupted) << another.error->message();
  EXPECT_NE(another.error->message().find(manifest.string()), std::string::npos) << another.error->message();
  EXPECT_GT(size, std::filesystem::file_size(manifest)) << "it is as it was";
}

TEST(SaveCheckpoint, IsRefusedWhereLatestIsNoFile) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  std::filesystem::create_directories(checkpoints / "latest");
  std::uint64_t commits = 0;
  const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
    for (const auto& directory : {checkpoints, std::filesystem::path()}) {
      const auto saved = engine.save_checkpoint(directory);
      EXPECT_EQ(saved.error().code(), ErrorCode::invalid_argument) << saved.error().message();
      EXPECT_NE(saved.error().message().find(directory.empty() ? "empty" : "latest"), std::string::npos);
    }
    PENSTOCK_TRY_ASSIGN(const auto commit, engine.commit());
    if (rank == 0) commits = commit.generation;
    return ok();
  };
  const RunResult result = train(saving(saved_run(), scratch.path() / "run", save));

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(commits, 3u) << "a refusal commits nothing";
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(checkpoints), {}), 1);
}

TEST(SaveCheckpoint, LeavesThePartThatAnotherProcessHas) {
  const ScratchDirectory scratch;
  const auto part = scratch.path() / "checkpoints" / "global_step1" / "rank0000";
  std::filesystem::create_directories(part);
  std::ofstream(part / "tensors0") << "of the other";
  const auto lock = tiers::real_file_system().lock(part).value();
  std::size_t refused = 0;
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    const auto saved = engine.save_checkpoint(scratch.path() / "checkpoints");
    if (!saved) ++refused;
    EXPECT_EQ(saved.has_value(), engine.completed_steps() != 1);
    return ok();
  };
  const RunOptions options = saved_run(1);
  const RunResult result = train(saving(options, scratch.path() / "run", save));

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(refused, 1u);
  EXPECT_EQ(text_of(part / "tensors0"), "of the other");
}

/// Whether a checkpoint in `directory` shares storage with the durable directory.
bool is_cloned_on(const std::filesystem::path& directory, const std::filesystem::path& durable_directory) {
  bool cloned = false;
  const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto saved, engine.save_checkpoint(directory / "checkpoints"));
    EXPECT_NE(saved.cloned.is_zero(), saved.written.is_zero());
    if (rank == 0) cloned = !saved.cloned.is_zero();
    return ok();
  };
  const RunOptions options = saved_run();
  const RunResult result = train(saving(options, durable_directory, save));
  EXPECT_FALSE(result.error) << result.error->message();
  for (const char* step : {"global_step1", "global_step3"}) {
    const RunResult loaded = train(loading(options, directory / "checkpoints" / step));
    EXPECT_FALSE(loaded.error) << loaded.error->message();
    EXPECT_EQ(loaded.digest, result.digest);
  }
  return cloned;
}

TEST(SaveCheckpoint, IsAReflinkWhereTheFileSystemHasIt) {
  for (const auto kind : {MountedFileSystem::Kind::xfs, MountedFileSystem::Kind::btrfs,
                          MountedFileSystem::Kind::ext4, MountedFileSystem::Kind::tmpfs}) {
    SCOPED_TRACE(to_string(kind));
    const MountedFileSystem mounted(kind);
    if (!mounted.skip_reason().empty()) GTEST_SKIP() << mounted.skip_reason();
    const bool has_reflinks = kind == MountedFileSystem::Kind::xfs || kind == MountedFileSystem::Kind::btrfs;
    const ScratchDirectory elsewhere;  // no durable directory is on a tmpfs
    const auto& durable_directory =
        kind == MountedFileSystem::Kind::tmpfs ? elsewhere.path() : mounted.path();
    EXPECT_EQ(is_cloned_on(mounted.path(), durable_directory / "run"), has_reflinks);
  }
}

TEST(SaveCheckpoint, KeepsTheLastOneWhereTheDiskFails) {
  using tiers::FileSystemFault;
  const RunOptions options = saved_run();
  const RunResult whole = train(options);
  // From the second save on: each call that a save makes fails once.
  for (const auto& [operation, error, code] :
       {std::tuple{FileSystemFault::Operation::write, ENOSPC, ErrorCode::no_space},
        {FileSystemFault::Operation::sync, EIO, ErrorCode::io},
        {FileSystemFault::Operation::rename, EIO, ErrorCode::io},
        {FileSystemFault::Operation::create, ENOSPC, ErrorCode::no_space}}) {
    for (std::uint64_t occurrence = 8; occurrence < 16; ++occurrence) {
      SCOPED_TRACE(std::string(to_string(code)) + std::string(" at call ") + std::to_string(occurrence));
      const ScratchDirectory scratch;
      const auto checkpoints = scratch.path() / "checkpoints";
      tiers::FaultFileSystem files(tiers::real_file_system(),
                                   {FileSystemFault::fail(operation, occurrence, error)});
      const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
        const auto saved = engine.save_checkpoint(checkpoints);
        if (saved) return ok();
        EXPECT_EQ(saved.error().code(), code) << saved.error().message();
        return engine.status() == Engine::Status::ready ? ok() : Result<void>(saved.error());
      };
      RunOptions run = saving(options, scratch.path() / "run", save);
      run.change_path = [&](std::uint32_t, swap::PathOptions& path) { path.file_system = &files; };

      const RunResult result = train(run);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.digest, whole.digest);
      for (const auto& one : std::filesystem::directory_iterator(checkpoints)) {
        if (!one.is_directory() || !std::filesystem::exists(one.path() / "rank0001")) continue;
        EXPECT_EQ(train(loading(options, one.path())).digest, whole.digest) << one.path();
      }
      EXPECT_EQ(train(loading(options, checkpoints)).digest, whole.digest);
    }
  }
}

TEST(LoadCheckpoint, LeavesAllRanksWithTheirSettingsWhereOneFails) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const RunOptions options = saved_run();
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    auto groups = engine.groups();
    groups[0].weight_decay = 0.25;
    PENSTOCK_TRY(engine.set_groups(groups));
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
    return ok();
  };
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", save)).error);
  flip_byte(checkpoints / "global_step3" / "rank0001" / "tensors0");

  RunOptions after = options;
  after.before_initialize = [&](Engine& engine, tiers::Stream&) {
    EXPECT_FALSE(engine.load_checkpoint(checkpoints));
    EXPECT_EQ(engine.groups()[0].weight_decay, options.model.groups[0].weight_decay);
    EXPECT_EQ(engine.completed_steps(), 0u);
  };
  const RunResult begun = train(after);

  ASSERT_FALSE(begun.error) << begun.error->message();
  EXPECT_EQ(begun.digest, train(options).digest);
}

TEST(LoadCheckpoint, ReadsAFileSystemThatMayNotBeWritten) {
  const MountedFileSystem mounted(MountedFileSystem::Kind::tmpfs);
  if (!mounted.skip_reason().empty()) GTEST_SKIP() << mounted.skip_reason();
  const ScratchDirectory scratch;
  const auto checkpoints = mounted.path() / "checkpoints";
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
    return ok();
  };
  const RunOptions options = saved_run();
  const RunResult whole = train(saving(options, scratch.path() / "run", save));
  ASSERT_FALSE(whole.error) << whole.error->message();
  ASSERT_EQ(::mount(nullptr, mounted.path().c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0);

  const RunResult loaded = train(loading(options, checkpoints));

  ASSERT_FALSE(loaded.error) << loaded.error->message();
  EXPECT_EQ(loaded.digest, whole.digest);
}

TEST(LoadCheckpoint, NamesWhatIsWrong) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const RunOptions options = saved_run();
  const auto save = [&](Engine& engine, std::uint32_t) -> Result<void> {
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints));
    return ok();
  };
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", save)).error);
  const auto refusal = [&](const RunOptions& run, const std::filesystem::path& from) {
    const RunResult result = train(loading(run, from));
    std::string messages;  // of all ranks
    for (const auto& error : result.errors) messages += error ? error->message() + "\n" : "no error\n";
    return messages;
  };
  const auto expect = [](const std::string& message, const std::vector<std::string>& parts) {
    for (const std::string& part : parts) EXPECT_NE(message.find(part), std::string::npos) << part << message;
  };

  expect(refusal(options, scratch.path() / "none"), {"not found", (scratch.path() / "none").string()});
  expect(refusal(options, scratch.path()), {"neither the file \"latest\" nor the parts of ranks"});
  RunOptions other = options;
  other.model.units[1].parameters[0].name = "other";
  expect(refusal(other, checkpoints), {"another model", "wanted weight of 40001 elements, got other"});
  expect(refusal(durable(options, scratch.path() / "run"), checkpoints), {"the durable directory has a run"});

  const auto tensors = checkpoints / "global_step2" / "rank0001" / "tensors0";
  flip_byte(tensors);
  expect(refusal(options, checkpoints / "global_step2"),
         {"not those that were committed: " + tensors.string(), "offset", "failed on another rank: rank 1"});
  std::filesystem::remove_all(checkpoints / "global_step1" / "rank0001");
  expect(refusal(options, checkpoints / "global_step1"),
         {"commit 1 of 2 ranks has no part of rank 1", "load another checkpoint"});
  expect(refusal(options, ""), {"its name is empty"});
  std::ofstream(checkpoints / "latest") << "global_step3\n";  // of an editor
  EXPECT_FALSE(train(loading(options, checkpoints)).error);
  std::ofstream(checkpoints / "latest") << "../elsewhere";
  expect(refusal(options, checkpoints), {"latest", "it names no checkpoint", "../elsewhere"});
}

}  // namespace
}  // namespace penstock::zero::test
