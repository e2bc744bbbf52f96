// A run in several directories goes on after commits that could not be written.
#include "kit/scratch_directory.hpp"
#include "sim/one_rank.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/zero/rank.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using tiers::Fault;
using tiers::IoOperation;
namespace fs = std::filesystem;

/// The engines of all files of a durable run, of which the next requests can be made to fail.
class FaultyEngines {
 public:
  /// Those of the copies, or of the swap files.
  [[nodiscard]] RankHooks hooks(bool of_swap_files) {
    const auto set = [this](swap::PathOptions& path) {
      path.weight = 1;  // is not measured
      path.decorate = [this](std::unique_ptr<tiers::IoEngine> engine) {
        auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), tiers::FaultPlan());
        engines_.push_back(faulty.get());
        return faulty;
      };
    };
    if (!of_swap_files) return {.durable_files = set};
    return {.runtime_options = [set](swap::RuntimeOptions& options) {
      for (swap::PathOptions& path : options.paths) set(path);
    }};
  }
  /// `directory`: 0 or 1. The engines before the last two have measured the directories.
  void fail_next(std::size_t directory, IoOperation operation, int error, std::uint64_t count) {
    tiers::FaultEngine& faulty = *engines_[engines_.size() - 2 + directory];
    faulty.add(Fault::fail(operation, faulty.accepted(operation), error, count));
  }

 private:
  std::vector<tiers::FaultEngine*> engines_;
};

/// In two directories, with many tiles.
Config config_in(const ScratchDirectory& scratch, OffloadDevice to) {
  Config config = durable_config(scratch.path(), to);
  config.penstock.durable_directories = {scratch.path() / "a", scratch.path() / "b"};
  config.penstock.tile_elements = ElementCount(16384);
  return config;
}

void train_and_commit(const OneRank& run) {
  run.train();
  const auto committed = run.engine().commit();
  ASSERT_TRUE(committed) << committed.error().message();
}

/// That another process goes on from there.
void expect_resumed(const Config& config, const std::string& digest) {
  const OneRank run = OneRank::create(config).value();
  const auto resumed = run.engine().resume();
  ASSERT_TRUE(resumed) << resumed.error().message();
  ASSERT_TRUE(*resumed);
  EXPECT_EQ(run.engine().digest().value(), digest);
}

// Each write of one commit or some of them, on one of the directories or both; then the drives work again.
TEST(CommitAfterFaults, IsWholeWhereWritesOfTheOneBeforeHaveFailed) {
  for (const int error : {EIO, EROFS, EBADF, EINVAL, ENOSPC}) {
    for (const std::uint64_t count : {1u, 2u, 3u, 5u, 8u, 100u}) {
      SCOPED_TRACE("error " + std::to_string(error) + ", " + std::to_string(count) + " writes");
      const ScratchDirectory scratch;
      const Config config = config_in(scratch, OffloadDevice::cpu);
      std::string digest;
      {
        FaultyEngines engines;
        const OneRank run = OneRank::create(config, two_units(), engines.hooks(false)).value();
        run.initialize();
        train_and_commit(run);
        run.train();
        for (std::size_t i = 0; i < 2; ++i) engines.fail_next(i, IoOperation::write, error, count);
        for (int attempt = 0; attempt < 300; ++attempt) {
          const auto failed = run.engine().commit();
          if (failed) break;
          ASSERT_NE(failed.error().code(), ErrorCode::invalid_argument) << failed.error().message();
        }
        for (int step = 0; step < 3; ++step) train_and_commit(run);
        digest = run.engine().digest().value();
      }
      expect_resumed(config, digest);
      if (HasFailure()) return;
    }
  }
}

// The kernel reports lost writes once, so a file is out of use after a failed flush.
TEST(CommitAfterFaults, IsWholeInTheOtherDirectoryWhereAFlushHasFailed) {
  for (const OffloadDevice to : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    for (const std::size_t failing : {0u, 1u}) {
      SCOPED_TRACE(std::string(to_string(to)) + ", directory " + std::to_string(failing));
      const ScratchDirectory scratch;
      const Config config = config_in(scratch, to);
      std::string digest;
      {
        FaultyEngines engines;
        const OneRank run =
            OneRank::create(config, two_units(), engines.hooks(to == OffloadDevice::nvme)).value();
        run.initialize();
        train_and_commit(run);
        run.train();
        engines.fail_next(failing, IoOperation::flush, EIO, 1);
        const auto failed = run.engine().commit();
        ASSERT_FALSE(failed);
        EXPECT_EQ(failed.error().code(), ErrorCode::io) << failed.error().message();
        for (int step = 0; step < 3; ++step) train_and_commit(run);
        digest = run.engine().digest().value();
      }
      expect_resumed(config, digest);
    }
  }
}

// Where the manifest of a failed commit cannot be removed, another process goes on from the complete one.
TEST(CommitAfterFaults, IsGoneOnFromWhereTheManifestOfAFailedOneStays) {
  using tiers::FileSystemFault;
  using Operation = FileSystemFault::Operation;
  std::uint64_t failed = 0;
  for (std::uint64_t sync = 0; sync < 8; ++sync) {
    for (std::uint64_t first = 0; first < 5; ++first) {
      for (const std::uint64_t second : {first, first + 1, first + 2}) {
        SCOPED_TRACE("sync " + std::to_string(sync) + ", removals " + std::to_string(first) + " and " +
                     std::to_string(second));
        const ScratchDirectory scratch;
        const Config config = durable_config(scratch.path());
        std::string digest;
        {
          tiers::FaultFileSystem files(tiers::real_file_system(),
                                       {FileSystemFault::fail(Operation::sync_directory, sync, EIO),
                                        FileSystemFault::fail(Operation::remove, first, EIO),
                                        FileSystemFault::fail(Operation::remove, second, EIO)});
          const auto run =
              OneRank::create(config, two_units(),
                              {.durable_files = [&](swap::PathOptions& path) { path.file_system = &files; }});
          if (!run) continue;
          run->initialize();
          run->train();
          auto committed = run->engine().commit();
          for (int attempt = 0; attempt < 4 && !committed; ++attempt, ++failed)
            committed = run->engine().commit();
          // The bytes of failed ones are kept as long as their manifests may be there.
          if (!committed && committed.error().code() == ErrorCode::no_space) continue;
          ASSERT_TRUE(committed) << committed.error().message();
          digest = run->engine().digest().value();
        }
        expect_resumed(config, digest);
      }
    }
  }
  EXPECT_GT(failed, 10u);
}

// A later process would not find the bytes.
TEST(CommitAfterFaults, IsRefusedWhileAFileIsNotAtItsName) {
  for (const OffloadDevice to : {OffloadDevice::cpu, OffloadDevice::nvme}) {
    for (const bool is_replaced : {false, true}) {
      const ScratchDirectory scratch;
      const Config config = config_in(scratch, to);
      const fs::path directory = scratch.path() / "b" / "rank0000", away = scratch.path() / "away";
      const fs::path file = directory / (to == OffloadDevice::cpu ? "copies0-1" : "swap1");
      std::string digest;
      {
        const OneRank run = OneRank::create(config).value();
        run.initialize();
        ASSERT_TRUE(run.engine().commit());
        fs::rename(file, away);
        if (is_replaced) fs::copy_file(away, file);

        run.train();
        const auto refused = run.engine().commit();

        ASSERT_FALSE(refused);
        EXPECT_EQ(refused.error().code(), ErrorCode::not_found) << refused.error().message();
        EXPECT_NE(refused.error().message().find(file.string()), std::string::npos);
        fs::rename(away, file);
        const auto again = run.engine().commit();
        ASSERT_TRUE(again) << again.error().message();
        digest = run.engine().digest().value();
      }
      expect_resumed(config, digest);
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
