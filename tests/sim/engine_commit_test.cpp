// A run that was committed goes on in another process with the same bits.
#include "kit/cluster.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"
#include "sim/continued_runs.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;
using penstock::test::SeededRandom;

/// The first steps of a run, committed after the last one of them.
RunOptions first_part(RunOptions options, std::uint32_t steps) {
  options.steps = steps;
  options.after_steps = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto report, engine.commit());
    EXPECT_GE(report.generation, 1u);
    return ok();
  };
  return options;
}

/// The rest of it.
RunOptions second_part(RunOptions options, std::uint32_t first_step) {
  options.first_step = first_step;
  options.restore = [first_step](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    EXPECT_EQ(resumed ? resumed->step : ~std::uint64_t{0}, first_step);
    return ok();
  };
  return options;
}

TEST(EngineCommit, IsContinuedWithTheBitsOfARunThatNeverStopped) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RunOptions options = random_continued_run(seed, 1 + seed % 3);
    const RunResult whole = train(options);
    ASSERT_FALSE(whole.error) << whole.error->message();
    const ScratchDirectory scratch;
    const auto directory = scratch.path() / "run";

    const RunResult first = train(first_part(durable(options, directory), 2));
    ASSERT_FALSE(first.error) << first.error->message();
    const RunResult second = train(second_part(durable(options, directory), 2));
    ASSERT_FALSE(second.error) << second.error->message();

    EXPECT_EQ(second.digest, whole.digest);
    EXPECT_EQ(second.parameters, whole.parameters);
    EXPECT_EQ(first.above_prediction, std::vector<std::string>{});
    EXPECT_EQ(second.above_prediction, std::vector<std::string>{});
  }
}

/// `options` goes on after two steps as if it had never stopped, although a value is not finite then.
void expect_continued_with_note(const RunOptions& options) {
  const RunResult whole = train(options);
  ASSERT_FALSE(whole.error) << whole.error->message();
  const ScratchDirectory scratch;
  const RunResult first = train(first_part(durable(options, scratch.path() / "run"), 2));
  ASSERT_FALSE(first.error) << first.error->message();
  RunOptions rest = second_part(durable(options, scratch.path() / "run"), 2);
  std::atomic<bool> noted = false;
  rest.restore = [&noted](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    EXPECT_TRUE(resumed);
    for (const std::string& note : resumed ? resumed->notes : std::vector<std::string>())
      noted = noted || note.find("not finite") != std::string::npos;
    return ok();
  };

  const RunResult second = train(rest);

  ASSERT_FALSE(second.error) << second.error->message();
  EXPECT_EQ(second.digest, whole.digest);
  EXPECT_TRUE(noted);
}

TEST(EngineCommit, WithNumbersThatAreNotFiniteIsContinuedAsTheRunGoesOn) {
  for (const RunFormat& format :
       {RunFormat{cpu_adam::StateFormat::fp32}, RunFormat{cpu_adam::StateFormat::fp32, DType::fp32}}) {
    SCOPED_TRACE(to_string(format.parameters));
    RunOptions options{.steps = 4};
    options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::nvme;
    format.set(options.config);
    options.config.penstock.non_finite_gradients = NonFiniteGradients::as_deepspeed;
    options.gradient_scale = [](std::uint32_t step, std::uint32_t) {
      return step == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
    };
    expect_continued_with_note(options);
  }
}

TEST(EngineCommit, WithMastersThatAreInfiniteInFp16IsContinuedAsTheRunGoesOn) {
  RunOptions options{.steps = 4};
  options.config.dtype = options.config.grad_accum_dtype = DType::fp16;
  options.config.optimizer.learning_rate = 1e5;
  expect_continued_with_note(options);
}

TEST(EngineCommit, IsContinuedByOtherRanksStagesTiersAndFormats) {
  for (const std::uint64_t seed : penstock::test::seeds(100, 150)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    SeededRandom random(seed);
    RunOptions options = random_continued_run(seed, 1 + static_cast<std::uint32_t>(random.below(4)));
    // Formats that keep the masters and moments exactly.
    continued_formats[random.below(2)].set(options.config);
    keep_random_states(options, seed);
    give_random_memory(options, seed);
    const ScratchDirectory scratch;
    const auto directory = scratch.path() / "run";
    const RunResult first = train(first_part(durable(options, directory), 2));
    ASSERT_FALSE(first.error) << first.error->message();
    RunOptions other = random_continued_run(seed + 1000, 1 + static_cast<std::uint32_t>(random.below(4)));
    other.model = options.model;
    continued_formats[random.below(2)].set(other.config);
    keep_random_states(other, seed + 1000);
    give_random_memory(other, seed);
    other = second_part(durable(other, directory), 2);
    other.steps = 2;
    other.after_steps = [](Engine& engine) -> Result<void> {
      PENSTOCK_TRY(engine.commit());
      return ok();
    };

    const RunResult second = train(other);

    ASSERT_FALSE(second.error) << second.error->message();
    EXPECT_EQ(second.digest, first.digest);
  }
}

/// One rank has all at home and the other nothing; then the reverse; then both as much as the plan chooses.
TEST(EngineCommit, IsContinuedWithOtherBudgetsOfNumaNodes) {
  for (const OffloadDevice to : {OffloadDevice::nvme, OffloadDevice::cpu}) {
    RunOptions options{.ranks = 2, .steps = 6, .model = deep_model()};
    options.config.offload_param.device = OffloadDevice::nvme;
    options.config.offload_optimizer.device = to;
    const RunResult whole = train(options);
    ASSERT_FALSE(whole.error) << whole.error->message();
    const ByteCount least = smallest_host_budget(options) / 2;
    const ScratchDirectory scratch;
    options = durable(options, scratch.path() / "run");
    options.config.penstock.rank_nodes = {0, 1};
    options.config.penstock.node_budgets = {least + 64_MiB, least};
    const RunResult first = train(first_part(options, 2));
    ASSERT_FALSE(first.error) << first.error->message();
    options.config.penstock.node_budgets = {least, least + 64_MiB};
    const RunResult second = train(first_part(second_part(options, 2), 4));
    ASSERT_FALSE(second.error) << second.error->message();
    options.config.penstock.node_budgets.clear();

    const RunResult third = train(second_part(options, 4));

    ASSERT_FALSE(third.error) << third.error->message();
    EXPECT_EQ(third.digest, whole.digest);
    EXPECT_EQ(third.parameters, whole.parameters);
    for (const RunResult& result : {first, second, third})
      EXPECT_EQ(result.above_prediction, std::vector<std::string>{});
  }
}

RunOptions small_run() {
  RunOptions options{.ranks = 2, .steps = 2};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  return options;
}

TEST(EngineCommit, IsNotReplacedByANewRun) {
  const ScratchDirectory scratch;
  const RunOptions options = durable(small_run(), scratch.path() / "run");
  ASSERT_FALSE(train(first_part(options, 1)).error);

  const RunResult again = train(options);

  ASSERT_TRUE(again.error);
  EXPECT_EQ(again.error->code(), ErrorCode::failed_state);
  EXPECT_NE(again.error->message().find("try     resume from it"), std::string::npos)
      << again.error->message();
}

TEST(EngineCommit, IsNotReplacedWhereAPartOfItIsMissing) {
  const ScratchDirectory scratch;
  const auto directory = scratch.path() / "run", away = scratch.path() / "away";
  const RunOptions options = durable(small_run(), directory);
  RunOptions twice = first_part(options, 2);
  twice.after_steps = [](Engine& engine) -> Result<void> {
    for (int i = 0; i < 2; ++i) PENSTOCK_TRY(engine.commit());
    return ok();
  };
  ASSERT_FALSE(train(twice).error);
  RunOptions alone = options;
  alone.ranks = 1;
  std::filesystem::rename(directory / "rank0001", away);
  for (const RunOptions& later : {options, second_part(options, 2), alone}) {
    const RunResult refused = train(later);
    ASSERT_TRUE(refused.error);
    EXPECT_EQ(refused.error->code(), ErrorCode::corrupted) << refused.error->message();
    EXPECT_NE(refused.error->message().find("rank0001"), std::string::npos) << refused.error->message();
    EXPECT_FALSE(std::filesystem::exists(directory / "rank0001")) << "where it is to be brought back";
  }

  std::filesystem::rename(away, directory / "rank0001");

  EXPECT_FALSE(train(second_part(options, 2)).error);
}

TEST(EngineCommit, KeepsWhatTheTrainerGivesIt) {
  const ScratchDirectory scratch;
  const RunOptions options = durable(small_run(), scratch.path() / "run");
  RunOptions first = options;
  first.after_steps = [](Engine& engine) -> Result<void> {
    const std::array bytes = {std::byte{1}, std::byte{0}, std::byte{200}};
    PENSTOCK_TRY(engine.commit(bytes));
    return ok();
  };
  ASSERT_FALSE(train(first).error);
  RunOptions second = options;
  second.first_step = 2;
  second.restore = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    EXPECT_EQ(resumed.value().client, (std::vector{std::byte{1}, std::byte{0}, std::byte{200}}));
    EXPECT_EQ(resumed->generation, 1u);
    EXPECT_EQ(resumed->ranks, 2u);
    return ok();
  };
  EXPECT_FALSE(train(second).error);
}

TEST(EngineCommit, CommitsAgainAndAgain) {
  const ScratchDirectory scratch;
  const RunOptions options = durable(small_run(), scratch.path() / "run");
  RunOptions whole = small_run();
  whole.steps = 6;
  const std::string expected = train(whole).digest;
  for (std::uint32_t step = 0; step < 6; ++step) {
    RunOptions part = options;
    part.first_step = step;
    if (step > 0) part = second_part(part, step);
    part.steps = step + 1;
    part.after_steps = [&, step](Engine& engine) -> Result<void> {
      for (std::uint64_t i = 1; i <= 3; ++i) {
        PENSTOCK_TRY_ASSIGN(const auto report, engine.commit());
        EXPECT_EQ(report.generation, 3 * step + i);
      }
      if (step < 5) return ok();
      PENSTOCK_TRY_ASSIGN(const std::string digest, engine.digest());
      EXPECT_EQ(digest, expected);
      return ok();
    };
    const RunResult result = train(part);
    ASSERT_FALSE(result.error) << "step " << step << ": " << result.error->message();
  }
  // One manifest of each rank.
  std::size_t manifests = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(scratch.path()))
    if (entry.path().extension() == ".manifest") ++manifests;
  EXPECT_EQ(manifests, 2u);
}

}  // namespace
}  // namespace penstock::zero::test
