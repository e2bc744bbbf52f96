// Where a commit fails on one rank, its peer has an error too, and the run goes on.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"

#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/fault_file_system.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;

struct Committed {
  RunResult result;
  std::array<std::vector<std::string>, 2> failed;  ///< the messages of commits, by rank
  std::size_t notes = 0;                           ///< of the others
};
/// Two ranks commit after each step. Rank 1 has faults.
Committed commits_with(const std::filesystem::path& directory, const tiers::FileSystemFaultPlan& of_files,
                       const tiers::FaultPlan& of_drive) {
  RunOptions options{.ranks = 2, .micro_batches = 1, .steps = 4};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.offload_param.device = OffloadDevice::cpu;
  options.config.penstock.durable_directories = {directory};
  tiers::FaultFileSystem files(tiers::real_file_system(), of_files);
  Committed committed;
  std::mutex mutex;
  options.without_leases = [&](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
    const bool begins =
        point.unit == 0 && point.micro_batch == 0 && point.place == RunOptions::ProgramPoint::Place::forward;
    if (!begins || point.step == 0) return ok();
    const auto report = engine.commit();
    const std::lock_guard lock(mutex);
    if (!report) committed.failed[point.rank].push_back(report.error().message());
    if (report) committed.notes += report->notes.size();
    return ok();
  };
  options.change_path = [&](std::uint32_t rank, swap::PathOptions& path) {
    if (rank == 0) return;
    path.file_system = &files;
    path.decorate = [&](std::unique_ptr<tiers::IoEngine> engine) {
      return std::make_unique<tiers::FaultEngine>(std::move(engine), of_drive);
    };
  };
  committed.result = train(options);
  return committed;
}

// Peers get an error too, and the run goes on.
TEST(CommitOfTwoRanks, FailsOnBothWhereTheUpdateOfOneFails) {
  std::string digest;
  {
    const ScratchDirectory scratch;
    digest = commits_with(scratch.path() / "run", {}, {}).result.digest;
  }
  std::size_t failed = 0;
  for (std::uint64_t request = 0; request < 24; ++request) {
    SCOPED_TRACE("request " + std::to_string(request));
    const ScratchDirectory scratch;

    const Committed one = commits_with(scratch.path() / "run", {}, {tiers::Fault::fail({}, request, ENOSPC)});

    EXPECT_EQ(one.failed[0].size(), one.failed[1].size());
    for (const std::string& message : one.failed[0]) {
      EXPECT_NE(message.find("failed on another rank: rank 1"), std::string::npos) << message;
      EXPECT_NE(message.find("cause   "), std::string::npos) << message;
    }
    failed += one.failed[1].size();
    EXPECT_TRUE(one.result.error || one.result.digest == digest);
  }
  EXPECT_GT(failed, 2u);
}

// The commit is complete on all ranks.
// In the forward, gathers of the next units wait for the update. A rank that has an error of its own repeats the call;
// its peer waits in it.
TEST(CommitOfTwoRanks, IsRepeatedByTheRankWhoseUpdateFailsBesideGathers) {
  std::array<std::uint32_t, 2> failed{}, committed{};
  for (std::uint64_t after = 0; after < 12; ++after) {  // reads of each update
    const ScratchDirectory scratch;
    RunOptions options{.ranks = 2, .micro_batches = 1, .steps = 4};
    options.model = deep_model();
    options.config.offload_optimizer.device = OffloadDevice::nvme;
    options.config.offload_param.device = OffloadDevice::cpu;
    options.config.penstock.durable_directories = {scratch.path() / "run"};
    options.attempts = 100;
    std::array<tiers::FaultEngine*, 2> faults{};
    options.without_leases = [&](Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
      const bool in_forward =
          point.unit == 1 && point.place == RunOptions::ProgramPoint::Place::forward && point.step > 0;
      if (!in_forward) return ok();
      bool is_committed = false;
      while (!is_committed && failed[point.rank] < 100) {
        is_committed = engine.commit().has_value();
        ++(is_committed ? committed : failed)[point.rank];
      }
      constexpr auto read = tiers::IoOperation::read;
      if (point.rank == 1)
        faults[1]->add(tiers::Fault::fail(read, faults[1]->accepted(read) + after, EIO, 30));
      return ok();
    };
    options.change_path = [&](std::uint32_t rank, swap::PathOptions& path) {
      path.decorate = [&faults, rank](std::unique_ptr<tiers::IoEngine> engine) {
        auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), tiers::FaultPlan());
        faults[rank] = faulty.get();
        return faulty;
      };
    };
    const RunResult result = train(options);
    ASSERT_FALSE(result.error) << result.error->message();
  }
  EXPECT_EQ(committed, (std::array<std::uint32_t, 2>{36, 36}));
  EXPECT_GT(failed[1], failed[0]);
}

TEST(CommitOfTwoRanks, NotesWhatIsLeftOfEarlierOnes) {
  using Operation = tiers::FileSystemFault::Operation;
  std::string digest;
  for (const auto& [operation, call] :
       {std::pair{Operation::rename, 1u}, {Operation::remove, 3u}, {Operation::remove, 5u}}) {
    SCOPED_TRACE(call);
    const ScratchDirectory scratch;

    const Committed one =
        commits_with(scratch.path() / "run", {tiers::FileSystemFault::fail(operation, call, EIO)}, {});

    ASSERT_FALSE(one.result.error) << one.result.error->message();
    EXPECT_EQ(one.failed[0].size() + one.failed[1].size(), 0u);
    EXPECT_LE(one.notes, 1u);
    if (digest.empty()) {
      EXPECT_EQ(one.notes, 1u) << "the run's number";
      digest = one.result.digest;
    }
    EXPECT_EQ(one.result.digest, digest);
  }
}

}  // namespace
}  // namespace penstock::zero::test
