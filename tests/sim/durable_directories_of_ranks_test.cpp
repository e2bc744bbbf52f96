// Which directories a durable run of several ranks takes, and what it leaves in them.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "sim/durable_files.hpp"
#include "sim/one_rank.hpp"
#include "sim/saving_runs.hpp"
#include "zero/commit/durable_directories.hpp"

#include <penstock/tiers/io/fault_file_system.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
namespace fs = std::filesystem;

/// A run of `ranks` that commits twice, after `steps` of them in all; it begins, or is continued.
RunResult run_of(const fs::path& directory, std::uint32_t ranks, std::uint32_t steps, OffloadDevice to) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .steps = steps};
  options.config.offload_optimizer.device = to;
  options = durable(std::move(options), directory);
  options.after_steps = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY(engine.commit());
    return ok();
  };
  if (fs::exists(directory)) {
    options.begins_where_restored = true;
    options.restore = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
      EXPECT_TRUE(resumed);
      return ok();
    };
  }
  return train(options);
}

TEST(DurableDirectoriesOfRanks, LoseWhatRanksThatARunNoLongerHasHaveLeft) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    const ScratchDirectory scratch;
    const fs::path directory = scratch.path() / "run";
    ASSERT_FALSE(run_of(directory, 5, 1, to).error);
    const auto before = files_below(directory / "rank0004");
    ASSERT_GE(before.size(), 3u);  // lock, manifest, swap file or copies
    std::ofstream(directory / "rank0003" / "notes.txt") << "mine";

    ASSERT_FALSE(run_of(directory, 2, 2, to).error);

    using Names = std::vector<std::string>;
    for (const auto& [rank, left] : {std::pair{"rank0002", Names{"penstock.lock"}},
                                     {"rank0003", {"notes.txt", "penstock.lock"}},
                                     {"rank0004", {"penstock.lock"}}}) {
      Names names;
      for (const auto& [name, size] : files_below(directory / rank)) names.push_back(name);
      EXPECT_EQ(names, left) << rank;
    }
    const RunResult again = run_of(directory, 3, 3, to);
    ASSERT_FALSE(again.error) << again.error->message();
  }
}

// Two containers of one machine have directories of their own under one name.
TEST(DurableDirectoriesOfRanks, AreNotJudgedByOneRankForTheOthers) {
  const ScratchDirectory scratch;
  const fs::path run = scratch.path() / "run", old = scratch.path() / "old";
  ASSERT_FALSE(run_of(run, 1, 1, OffloadDevice::cpu).error);
  fs::copy(run / "rank0000", old, fs::copy_options::recursive);
  ASSERT_FALSE(run_of(run, 2, 2, OffloadDevice::cpu).error);
  fs::remove_all(run / "rank0000");
  fs::rename(old, run / "rank0000");

  const auto judged = check_commit({.directories = {run}, .rank = 1}, 0, RankIdentity::local(1, 2));

  EXPECT_TRUE(judged) << judged.error().message();
}

/// The part of one rank is that of an earlier commit, or of another run.
TEST(DurableDirectoriesOfRanks, AreOfOneTimeAndOneRunOnAllRanks) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    for (const std::uint32_t rank : {0u, 1u}) {
      for (const bool of_another_run : {false, true}) {
        SCOPED_TRACE(std::to_string(rank) + (of_another_run ? " of another run" : " of another time"));
        const ScratchDirectory scratch;
        const fs::path run = scratch.path() / "run", other = scratch.path() / "other",
                       part = run / ("rank000" + std::to_string(rank)), away = scratch.path() / "away";
        ASSERT_FALSE(run_of(run, 2, 1, to).error);
        if (of_another_run) {
          ASSERT_FALSE(run_of(other, 2, 1, to).error);
        } else {
          fs::copy(run, other, fs::copy_options::recursive);
        }
        ASSERT_FALSE(run_of(run, 2, 2, to).error);
        fs::rename(part, away);
        fs::rename(other / part.filename(), part);
        const auto before = manifests_below(scratch.path());

        const RunResult refused = run_of(run, 2, 3, to);

        ASSERT_TRUE(refused.error);
        const std::string message = refused.error->message();
        EXPECT_EQ(to_string(refused.error->code()),
                  to_string(of_another_run ? ErrorCode::invalid_argument : ErrorCode::corrupted))
            << message;
        EXPECT_NE(message.find(of_another_run ? "another run" : part.string()), std::string::npos) << message;
        EXPECT_EQ(manifests_below(scratch.path()), before);
        fs::remove_all(part);
        fs::rename(away, part);
        const RunResult again = run_of(run, 2, 3, to);
        EXPECT_FALSE(again.error) << again.error->message();
      }
    }
  }
}

/// And not that a part of the commit is away.
TEST(DurableDirectoriesOfRanks, SayThatAFileCannotBeReadNow) {
  const ScratchDirectory scratch;
  const fs::path run = scratch.path() / "run";
  ASSERT_FALSE(run_of(run, 2, 1, OffloadDevice::cpu).error);
  std::uint64_t refused = 0;
  for (std::uint64_t call = 0;; ++call) {
    using Operation = tiers::FileSystemFault::Operation;
    tiers::FaultFileSystem files(tiers::real_file_system(),
                                 {tiers::FileSystemFault::fail(Operation::open, call, EIO)});
    const auto one =
        OneRank::create(config_of({run}, OffloadDevice::cpu), two_units(),
                        {.durable_files = [&](swap::PathOptions& path) { path.file_system = &files; }});
    if (files.injected() == 0) break;
    if (one) continue;
    ++refused;
    EXPECT_EQ(to_string(one.error().code()), to_string(ErrorCode::io)) << call << one.error().message();
  }
  EXPECT_GT(refused, 4u);
}

/// Two ranks of four on this machine, killed while one of them had its manifest of commit 2: commit 1 may be whole.
TEST(DurableDirectoriesOfRanks, AreJudgedByAllRanksWhereOneMachineHasSome) {
  const ScratchDirectory scratch;
  const fs::path run = scratch.path() / "run", machine = scratch.path() / "machine";
  ASSERT_FALSE(run_of(run, 4, 1, OffloadDevice::cpu).error);
  fs::create_directory(machine);
  fs::copy(run / "rank0001", machine / "rank0001");
  ASSERT_FALSE(run_of(run, 4, 2, OffloadDevice::cpu).error);
  fs::copy(run / "rank0000", machine / "rank0000");
  fs::create_directory(machine / "rank0002");  // of an earlier trial on this machine
  for (const std::uint32_t rank : {0u, 1u}) {
    int agreements = 0;
    const GroupMembership group{.agree = [&](const std::string&) -> Result<void> {
      ++agreements;
      return Error(ErrorCode::peer_failed, "the test");
    }};
    const auto stopped =
        Rank::create({.config = config_of({machine}, OffloadDevice::cpu),
                      .model = two_units(),
                      .identity = {.rank = rank, .ranks = 4, .local_rank = rank, .local_ranks = 2},
                      .group = group});
    EXPECT_EQ(agreements, 1) << stopped.error().message();
  }
}

/// The refusal of one rank ends the others before they make anything.
TEST(DurableDirectoriesOfRanks, AreJudgedBeforeTheRanksAgreeAndMadeAfterwards) {
  const ScratchDirectory scratch;
  const fs::path a = scratch.path() / "a", b = scratch.path() / "b", swap = a / "rank0000" / "swap0";
  (void)go_on(config_of({a}));
  const auto before = files_below(scratch.path());
  int agreements = 0;
  const auto create = [&] {
    GroupMembership group = in_process_membership(InProcessGroup::create(1).value(), 0);
    group.agree = [&](const std::string&) -> Result<void> {
      ++agreements;
      return Error(ErrorCode::not_found, "a peer").reason("a file of its own is not there");
    };
    return Rank::create({.config = config_of({a, b}), .model = two_units(), .group = group});
  };

  EXPECT_EQ(create().error().code(), ErrorCode::not_found);

  EXPECT_EQ(agreements, 1);
  EXPECT_EQ(files_below(scratch.path()), before);
  fs::remove(swap);
  EXPECT_NE(create().error().message().find(swap.string()), std::string::npos);
  EXPECT_EQ(agreements, 1) << "its peers are not asked";
}

}  // namespace
}  // namespace penstock::zero::test
