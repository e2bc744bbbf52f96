// What is wrong with a durable directory, or fails in a commit, is named; the last commit stays.
#include "kit/scratch_directory.hpp"
#include "sim/one_rank.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
namespace fs = std::filesystem;

template <class T>
void expect(const Result<T>& result, ErrorCode code, const std::string& text) {
  ASSERT_FALSE(result);
  EXPECT_EQ(to_string(result.error().code()), to_string(code)) << result.error().message();
  EXPECT_NE(result.error().message().find(text), std::string::npos) << result.error().message();
}

TEST(EngineCommitFaults, RefusesASecondRunInTheDirectory) {
  const ScratchDirectory scratch;
  const OneRank first = OneRank::create(durable_config(scratch.path())).value();

  expect(OneRank::create(durable_config(scratch.path())), ErrorCode::in_use, "rank0000");
}

TEST(EngineCommitFaults, RefusesADirectoryInMemory) {
  if (tiers::real_file_system().type_name("/dev/shm") != "tmpfs") GTEST_SKIP() << "/dev/shm is no tmpfs";
  const fs::path directory = "/dev/shm/penstock-test-" + std::to_string(::getpid());

  Config config = durable_config(directory, OffloadDevice::cpu);
  config.penstock.durable_directories = {directory};

  expect(OneRank::create(config), ErrorCode::unsupported, "name a directory on a drive");

  EXPECT_FALSE(fs::exists(directory)) << "a refusal makes nothing";
}

// Their rates are measured at each start, so that the bytes are divided by them.
TEST(EngineCommitFaults, IsLeftAsItIsByAStartThatMeasuresTheDirectories) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    SCOPED_TRACE(to_string(to));
    const ScratchDirectory scratch;
    Config config = durable_config(scratch.path(), to);
    const std::string one_directory = commit_one_step(config);
    for (const char* const name : {"a", "b"}) fs::create_directory(scratch.path() / name);
    config.penstock.durable_directories.push_back(scratch.path() / "b");
    for (int start = 0; start < 2; ++start) {
      const OneRank run = OneRank::create(config).value();
      EXPECT_EQ(run.engine().resume().value()->step, 1u);
      EXPECT_EQ(run.engine().digest().value(), one_directory);
    }
    config.penstock.durable_directories = {scratch.path() / "a" / "run", scratch.path() / "b" / "run"};
    const std::string two_directories = commit_one_step(config);
    for (int start = 0; start < 2; ++start) (void)OneRank::create(config).value();

    const OneRank again = OneRank::create(config).value();
    EXPECT_EQ(again.engine().resume().value()->step, 1u);
    EXPECT_EQ(again.engine().digest().value(), two_directories);
  }
}

// The clock of a machine may be set back between two runs.
TEST(EngineCommitFaults, IsContinuedWhateverTheTimesOfItsFilesAre) {
  const ScratchDirectory scratch;
  const Config config = durable_config(scratch.path());
  const fs::path checkpoints = scratch.path() / "checkpoints";
  const auto set_times = [](const fs::path& directory, int years) {
    for (const auto& entry : fs::recursive_directory_iterator(directory))
      fs::last_write_time(entry, fs::file_time_type::clock::now() + std::chrono::hours(24 * 365 * years));
  };
  std::string expected;
  {
    const OneRank run = OneRank::create(config).value();
    run.initialize();
    for (int step = 1; step <= 3; ++step) {
      run.train();
      const auto saved = run.engine().save_checkpoint(checkpoints, {.keep = 2}).value();
      EXPECT_EQ(saved.removed.size(), step == 3 ? 1u : 0u);
      set_times(saved.path, -step);  // the newest is the oldest by its files' times
    }
    expected = run.engine().digest().value();
  }
  EXPECT_FALSE(fs::exists(checkpoints / "global_step1"));
  set_times(scratch.path() / "run", 50);

  const OneRank again = OneRank::create(config).value();
  EXPECT_EQ(again.engine().resume().value()->step, 3u);
  EXPECT_EQ(again.engine().commit().value().generation, 4u);
  EXPECT_EQ(again.engine().digest().value(), expected);
}

TEST(EngineCommitFaults, RefusesAnotherModelOrOptimizer) {
  const ScratchDirectory scratch;
  const std::string digest = commit_one_step(durable_config(scratch.path()));
  {
    const OneRank other = OneRank::create(durable_config(scratch.path()), two_units(100'001)).value();
    expect(other.engine().resume(), ErrorCode::invalid_argument, "weight of 100001 elements");
  }
  {
    ModelLayout more = two_units();
    more.units.push_back({.name = "third", .parameters = {{"weight", ElementCount(5), 0}}});
    const OneRank other = OneRank::create(durable_config(scratch.path()), more).value();
    expect(other.engine().resume(), ErrorCode::invalid_argument, "number of parameters");
  }
  {
    Config config = durable_config(scratch.path());
    config.optimizer.type = cpu_adam::Optimizer::lion;
    const OneRank other = OneRank::create(config).value();
    expect(other.engine().resume(), ErrorCode::invalid_argument, "adam");
  }
  const OneRank again = OneRank::create(durable_config(scratch.path())).value();
  EXPECT_EQ(again.engine().resume().value()->step, 1u);
  EXPECT_EQ(again.engine().digest().value(), digest);
}

fs::path only_file(const fs::path& directory, const std::string& beginning) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (entry.is_regular_file() && entry.path().filename().string().starts_with(beginning))
      return entry.path();
  }
  return {};
}

void flip_bit(const fs::path& file, std::uint64_t offset) {
  std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
  stream.seekg(static_cast<std::streamoff>(offset));
  const int byte = stream.get();
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(static_cast<char>(byte ^ 4));
}

TEST(EngineCommitFaults, NamesTheBytesThatHaveChanged) {
  for (const auto& [to, file] :
       {std::pair{OffloadDevice::nvme, "swap0"}, {OffloadDevice::cpu, "copies0-0"}}) {
    const ScratchDirectory scratch;
    const Config config = durable_config(scratch.path(), to);
    (void)commit_one_step(config);
    const fs::path damaged = only_file(scratch.path(), file);
    ASSERT_FALSE(damaged.empty()) << file;
    // The extents of the last commit are not known here: one bit of each page.
    for (std::uint64_t at = 100; at < fs::file_size(damaged); at += 4096) flip_bit(damaged, at);

    const OneRank run = OneRank::create(config).value();

    expect(run.engine().resume(), ErrorCode::corrupted, damaged.string());
    expect(run.engine().digest(), ErrorCode::failed_state, "");
  }
}

TEST(EngineCommitFaults, NamesADamagedManifest) {
  const ScratchDirectory scratch;
  const Config config = durable_config(scratch.path());
  (void)commit_one_step(config);
  flip_bit(only_file(scratch.path(), "engine0-"), 100);

  expect(OneRank::create(config), ErrorCode::corrupted, "manifest");
}

TEST(EngineCommitFaults, RefusesMoreBytesOfTheTrainerThanAManifestHolds) {
  const ScratchDirectory scratch;
  const OneRank run = OneRank::create(durable_config(scratch.path())).value();
  run.initialize();
  const std::byte byte{};
  const std::span<const std::byte> huge(&byte, (std::size_t{1} << 30) + 1);  // refused before it is read

  expect(run.engine().commit(huge), ErrorCode::invalid_argument, "client");
  expect(run.engine().begin_commit(huge), ErrorCode::invalid_argument, "client");
  expect(run.engine().save_checkpoint(scratch.path() / "checkpoints", {.client = huge}),
         ErrorCode::invalid_argument, "client");

  EXPECT_EQ(run.engine().commit().value().generation, 1u);
}

TEST(EngineCommitFaults, NeedsADirectoryAndAnEndedStep) {
  const ScratchDirectory scratch;
  Config config = durable_config(scratch.path());
  {
    const OneRank run = OneRank::create(config).value();
    expect(run.engine().commit(), ErrorCode::failed_state, "initialize()");
    run.initialize();
    auto gradients = run.engine().gradients(1, *run.stream).value();
    expect(run.engine().commit(), ErrorCode::failed_state, "step");
    run.engine().abandon_step(*run.stream).value();
    (void)run.engine().park(tiers::Tier::host).value();
    expect(run.engine().commit(), ErrorCode::failed_state, "unpark()");
    (void)run.engine().unpark().value();
    EXPECT_TRUE(run.engine().commit());
  }
  config.penstock.durable_directories.clear();
  const OneRank run = OneRank::create(config).value();
  run.initialize();
  expect(run.engine().commit(), ErrorCode::failed_state, "durable_directory");
  expect(run.engine().resume(), ErrorCode::failed_state, "durable_directory");
}

TEST(EngineCommitFaults, KeepsTheRunInMemoryWhereARestoreIsRefused) {
  const ScratchDirectory scratch;
  const OneRank run = OneRank::create(durable_config(scratch.path())).value();
  run.initialize();
  run.train();
  (void)run.engine().save_checkpoint(scratch.path() / "checkpoints").value();
  run.train();
  const std::string expected = run.engine().digest().value();
  const auto expect_refused = [&](const char* text) {
    expect(run.engine().resume(), ErrorCode::failed_state, text);
    expect(run.engine().load_checkpoint(scratch.path() / "checkpoints"), ErrorCode::failed_state, text);
  };

  auto gradients = run.engine().gradients(1, *run.stream).value();
  expect_refused("step");
  run.engine().abandon_step(*run.stream).value();
  {
    const auto lease = run.engine().acquire(0, *run.stream).value();
    expect_refused("lease");
  }
  (void)run.engine().park(tiers::Tier::host).value();
  expect_refused("unpark()");
  (void)run.engine().unpark().value();

  EXPECT_EQ(run.engine().digest().value(), expected);
  run.train();
  EXPECT_EQ(run.engine().resume().value()->step, 1u);
  expect(run.engine().initialize(OneRank::fill), ErrorCode::failed_state, "try     resume from it");
}

// At each request of a commit, of swap files and copies. The mover may have written so much before the commit that
// fewer requests are left than the fault's number: then no fault is injected and the commit is durable.
TEST(EngineCommitFaults, KeepTheLastCommitWhereAWriteFails) {
  for (const int error : {EIO, ENOSPC}) {
    for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
      for (std::uint64_t call = 0; call < 3; ++call) {
        SCOPED_TRACE(std::to_string(call) + " " + std::to_string(error));
        const ScratchDirectory scratch;
        const Config config = durable_config(scratch.path(), to);
        std::string expected;
        bool committed = false;
        {
          tiers::FaultEngine* faults = nullptr;
          const OneRank run =
              OneRank::create(config, two_units(), with_faults(to == OffloadDevice::nvme, faults)).value();
          run.initialize();
          run.train();
          (void)run.engine().commit().value();
          expected = run.engine().digest().value();
          run.train();
          faults->add(tiers::Fault::fail(std::nullopt, faults->accepted() + call, error, 1'000'000));

          committed = run.engine().commit().has_value();

          EXPECT_EQ(committed, faults->injected() == 0);
        }

        EXPECT_FALSE(committed && call == 0) << "each commit flushes";
        const OneRank again = OneRank::create(config).value();
        EXPECT_EQ(again.engine().resume().value()->generation, committed ? 2u : 1u);
        EXPECT_EQ(again.engine().digest().value() == expected, !committed);
      }
    }
  }
}

TEST(EngineCommitFaults, GoOnAfterACommitThatFailed) {
  const ScratchDirectory scratch;
  const Config config = durable_config(scratch.path());
  std::string expected;
  {
    tiers::FaultFileSystem* files = nullptr;
    std::unique_ptr<tiers::FaultFileSystem> owner;
    owner = std::make_unique<tiers::FaultFileSystem>(
        tiers::real_file_system(), tiers::FileSystemFaultPlan{tiers::FileSystemFault::fail(
                                       tiers::FileSystemFault::Operation::rename, 2, ENOSPC)});
    files = owner.get();
    const auto use_files = [files](swap::PathOptions& path) { path.file_system = files; };
    const OneRank run = OneRank::create(config, two_units(), {.durable_files = use_files}).value();
    run.initialize();
    run.train();
    (void)run.engine().commit().value();
    run.train();
    expect(run.engine().commit(), ErrorCode::no_space, "manifest");
    EXPECT_EQ(run.engine().status(), Engine::Status::ready);
    run.train();

    const CommitReport report = run.engine().commit().value();

    EXPECT_EQ(report.generation, 3u) << "the number of the one that failed is not used again";
    expected = run.engine().digest().value();
  }
  const OneRank again = OneRank::create(config).value();
  EXPECT_EQ(again.engine().resume().value()->step, 3u);
  EXPECT_EQ(again.engine().digest().value(), expected);
}

// Copies of parameters are cut at other places than tiles.
TEST(EngineCommitFaults, IsContinuedWherePartsOfCopiesMeetInATile) {
  const ScratchDirectory scratch;
  Config config = durable_config(scratch.path(), OffloadDevice::cpu);
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.penstock.state_format = cpu_adam::StateFormat::split;
  const ModelLayout model = two_units(5'000'000);
  std::string expected;
  {
    const OneRank run = OneRank::create(config, model).value();
    run.initialize();
    EXPECT_GE(run.engine().commit().value().copied, ByteCount(60'000'000));
    expected = run.engine().digest().value();
  }
  const OneRank run = OneRank::create(config, model).value();

  EXPECT_EQ(run.engine().resume().value()->step, 0u);
  EXPECT_EQ(run.engine().digest().value(), expected);
}

TEST(EngineCommitFaults, IsContinuedInADirectoryOfAnotherName) {
  const ScratchDirectory scratch;
  const std::string expected = commit_one_step(durable_config(scratch.path()));
  fs::rename(scratch.path() / "run", scratch.path() / "moved");
  Config config = durable_config(scratch.path());
  config.penstock.durable_directories = {scratch.path() / "moved"};

  const OneRank run = OneRank::create(config).value();

  EXPECT_EQ(run.engine().resume().value()->step, 1u);
  EXPECT_EQ(run.engine().digest().value(), expected);
}

}  // namespace
}  // namespace penstock::zero::test
