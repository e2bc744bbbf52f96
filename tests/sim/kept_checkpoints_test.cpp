// Which checkpoints a run keeps.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "sim/saving_runs.hpp"
#include "zero/commit/checkpoint_directory.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;

TEST(KeptCheckpoints, AreAsManyAsAreAskedFor) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  std::filesystem::create_directories(checkpoints / "global_stepping");
  std::ofstream(checkpoints / "notes.txt") << "mine";
  std::vector<std::filesystem::path> removed;
  const auto save = [&](Engine& engine, std::uint32_t rank) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto saved, engine.save_checkpoint(checkpoints, {.keep = 2}));
    if (rank == 0) removed.insert(removed.end(), saved.removed.begin(), saved.removed.end());
    return ok();
  };
  RunOptions options = saved_run();
  options.steps = 6;

  const RunResult result = train(saving(options, scratch.path() / "run", save));

  ASSERT_FALSE(result.error) << result.error->message();
  EXPECT_EQ(removed, (std::vector{checkpoints / "global_step1", checkpoints / "global_step2",
                                  checkpoints / "global_step3"}));
  std::vector<std::string> left;
  for (const auto& one : std::filesystem::directory_iterator(checkpoints))
    left.push_back(one.path().filename().string());
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{"global_step4", "global_step5", "global_stepping", "latest",
                                            "notes.txt"}));
  EXPECT_EQ(text_of(checkpoints / "latest"), "global_step5");
  const RunResult loaded = train(loading(options, checkpoints / "global_step4"));
  ASSERT_FALSE(loaded.error) << loaded.error->message();
  EXPECT_EQ(loaded.digest, result.digest);
}

TEST(KeptCheckpoints, AreThoseOfTheRunThatWasLoadedToo) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  const auto save_at = [&](std::uint64_t first, std::uint32_t keep) {
    return [&checkpoints, first, keep](Engine& engine, std::uint32_t) -> Result<void> {
      if (engine.completed_steps() < first) return ok();
      PENSTOCK_TRY(engine.save_checkpoint(checkpoints, {.keep = keep}));
      return ok();
    };
  };
  RunOptions options = saved_run();
  options.steps = 6;
  const RunResult whole = train(saving(options, scratch.path() / "run", save_at(1, 0)));
  ASSERT_FALSE(whole.error) << whole.error->message();
  std::filesystem::remove_all(checkpoints / "global_step3");

  // Back to step 2, in another durable directory. Steps 4 and 5 are not older than the new one.
  RunOptions back =
      loading(saving(options, scratch.path() / "again", save_at(3, 2)), checkpoints / "global_step2");
  back.steps = 4;
  const RunResult again = train(back);

  ASSERT_FALSE(again.error) << again.error->message();
  std::vector<std::string> left;
  for (const auto& one : std::filesystem::directory_iterator(checkpoints))
    left.push_back(one.path().filename().string());
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{"global_step2", "global_step3", "global_step4", "global_step5",
                                            "latest"}));
  EXPECT_EQ(text_of(checkpoints / "latest"), "global_step3");
  const RunResult loaded = train(loading(options, checkpoints));
  ASSERT_FALSE(loaded.error) << loaded.error->message();
  EXPECT_EQ(loaded.digest, whole.digest);
}

/// Saves after each step from `first` on.
std::function<Result<void>(Engine&, std::uint32_t)> saver(const std::filesystem::path& checkpoints,
                                                          std::uint64_t first, std::uint32_t keep) {
  return [=](Engine& engine, std::uint32_t) -> Result<void> {
    if (engine.completed_steps() < first) return ok();
    PENSTOCK_TRY(engine.save_checkpoint(checkpoints, {.keep = keep}));
    return ok();
  };
}

TEST(OldCheckpoints, AreThoseBeforeTheLastOnesAndIncompleteOnes) {
  using Steps = std::vector<std::uint64_t>;
  const std::vector<CheckpointPart> parts = {{1, 9, 2, 0}, {1, 9, 2, 1},  // complete
                                             {2, 8, 2, 0}, {2, 7, 2, 1},  // of two attempts
                                             {3, 6, 1, 0},                // complete
                                             {4, 0, 0, 1},                // without a manifest
                                             {5, 5, 3, 0}, {5, 5, 3, 1}, {5, 5, 3, 2},
                                             {5, 0, 0, 3}, {6, 4, 2, 0}};  // it may be in progress

  EXPECT_EQ(old_checkpoints(parts, 1), (Steps{1, 2, 3, 4}));
  EXPECT_EQ(old_checkpoints(parts, 2), (Steps{1, 2, 4}));
  EXPECT_EQ(old_checkpoints(parts, 9), (Steps{2, 4}));
  EXPECT_EQ(old_checkpoints({}, 1), Steps());
}

TEST(KeptCheckpoints, AreComplete) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  RunOptions options = saved_run();
  options.steps = 3;
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", saver(checkpoints, 1, 2))).error);
  // As if rank 1 had been killed before it had its part of step 2.
  std::filesystem::remove(checkpoints / "global_step2" / "rank0001" / "engine0-000000000002.manifest");

  const RunOptions more = resuming(saving(saved_run(), scratch.path() / "run", saver(checkpoints, 3, 2)));
  const RunResult whole = train(more);

  ASSERT_FALSE(whole.error) << whole.error->message();
  for (const char* step : {"global_step1", "global_step3"}) {
    const RunResult loaded = train(loading(saved_run(), checkpoints / step));
    ASSERT_FALSE(loaded.error) << step << loaded.error->message();
    EXPECT_EQ(loaded.digest, whole.digest) << step;
  }
  EXPECT_FALSE(std::filesystem::exists(checkpoints / "global_step2"));
}

TEST(KeptCheckpoints, LeaveWhatAnotherProcessHasLocked) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints", other = checkpoints / "global_step1" / "rank0000";
  std::filesystem::create_directories(other);
  std::ofstream(other / "tensors0") << "in progress";
  {
    const auto lock = tiers::real_file_system().lock(other).value();
    ASSERT_FALSE(train(saving(saved_run(1), scratch.path() / "run", saver(checkpoints, 2, 1))).error);
    EXPECT_TRUE(std::filesystem::exists(other / "tensors0"));
  }
  RunOptions more = resuming(saving(saved_run(1), scratch.path() / "run", saver(checkpoints, 4, 1)));
  more.steps = 5;
  ASSERT_FALSE(train(more).error);
  EXPECT_FALSE(std::filesystem::exists(other / "tensors0"));
}

/// initialize() begins another run, though values were loaded before.
TEST(KeptCheckpoints, AreThoseOfTheRunItself) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  RunOptions options = saved_run();
  options.steps = 3;
  ASSERT_FALSE(train(saving(options, scratch.path() / "run", saver(checkpoints, 1, 0))).error);

  RunOptions other = saving(saved_run(), scratch.path() / "other", saver(checkpoints, 3, 1));
  other.before_initialize = [&](Engine& engine, tiers::Stream&) {
    EXPECT_TRUE(engine.load_checkpoint(checkpoints));
  };
  ASSERT_FALSE(train(other).error);

  for (const char* step : {"global_step1", "global_step2", "global_step3"})
    EXPECT_TRUE(std::filesystem::exists(checkpoints / step)) << step;
}

TEST(KeptCheckpoints, HaveNoPartsOfFormerRanksBeside) {
  const ScratchDirectory scratch;
  const auto checkpoints = scratch.path() / "checkpoints";
  RunOptions four = saved_run(4);
  four.steps = 3;
  ASSERT_FALSE(train(saving(four, scratch.path() / "run", saver(checkpoints, 1, 0))).error);
  ASSERT_TRUE(std::filesystem::exists(checkpoints / "global_step2" / "rank0003"));

  RunOptions two = resuming(saving(saved_run(2), scratch.path() / "run", saver(checkpoints, 3, 1)));
  const RunResult result = train(two);

  ASSERT_FALSE(result.error) << result.error->message();
  std::vector<std::string> left;
  for (const auto& one : std::filesystem::directory_iterator(checkpoints))
    left.push_back(one.path().filename().string());
  std::ranges::sort(left);
  EXPECT_EQ(left, (std::vector<std::string>{"global_step3", "latest"}));
}

}  // namespace
}  // namespace penstock::zero::test
