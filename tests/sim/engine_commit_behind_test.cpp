// A commit that is made behind the next step has the states of its own.
#include "kit/cluster.hpp"
#include "kit/faulty_accelerator.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeds.hpp"
#include "kit/trainer.hpp"
#include "sim/continued_runs.hpp"
#include "sim/one_rank.hpp"

#include <gtest/gtest.h>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero::test {
namespace {

using penstock::test::ScratchDirectory;

TEST(EngineCommitBehind, HasTheStatesOfItsStep) {
  for (const std::uint64_t seed : penstock::test::seeds(0, 60)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = random_continued_run(seed, 1 + seed % 3);
    const RunResult whole = train(options);
    ASSERT_FALSE(whole.error) << whole.error->message();
    const ScratchDirectory scratch;
    RunOptions first = options;
    make_durable(first, {scratch.path() / "run"}, Commits::behind);
    const RunResult ended = train(first);
    ASSERT_FALSE(ended.error) << ended.error->message();
    EXPECT_EQ(ended.digest, whole.digest);
    EXPECT_EQ(ended.above_prediction, std::vector<std::string>{});

    RunOptions last_commit = durable(options, scratch.path() / "run");
    last_commit.begins_where_restored = true;
    std::atomic<std::uint64_t> resumed_at = 0;
    last_commit.restore = [&](Engine& engine) -> Result<void> {
      PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
      if (resumed) resumed_at = resumed->step;
      return ok();
    };
    const RunResult second = train(last_commit);
    ASSERT_FALSE(second.error) << second.error->message();
    EXPECT_EQ(resumed_at, options.steps - 1u) << "the last step has completed the commit before it";
    EXPECT_EQ(second.digest, whole.digest);
  }
}

TEST(EngineCommitBehind, CopiesWhileTheNextStepGoesOn) {
  for (const bool begun_before_the_update_ends : {false, true}) {
    SCOPED_TRACE(begun_before_the_update_ends);
    const ScratchDirectory scratch;
    tiers::FaultEngine* copies = nullptr;
    const OneRank run = OneRank::create(durable_config(scratch.path(), OffloadDevice::cpu), two_units(),
                                        with_faults(/*of_swap_files=*/false, copies))
                            .value();
    run.initialize();
    run.train();
    if (!begun_before_the_update_ends) run.engine().finish_update().value();
    run.engine().begin_commit().value();
    if (begun_before_the_update_ends) {
      run.engine().finish_update().value();
      (void)run.engine().acquire(0, *run.stream).value();
    }

    const auto all_written = [&] { return copies->accepted() >= 2; };  // a tile of each unit
    for (int i = 0; i < 6000 && !all_written(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));

    EXPECT_TRUE(all_written());
    EXPECT_EQ(run.engine().finish_commit().value().generation, 1u);
  }
}

// One rank abandons a step before its end, while the other one completes the commit in step().
TEST(EngineCommitBehind, IsInProgressOnAllRanksAfterOneHasAbandonedTheStep) {
  for (const bool finished_before_the_next_attempt : {false, true}) {
    SCOPED_TRACE(finished_before_the_next_attempt);
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      SCOPED_TRACE("seed " + std::to_string(seed));
      const RunOptions plain = random_continued_run(seed, 2);
      const RunResult whole = train(plain);
      ASSERT_FALSE(whole.error) << whole.error->message();
      const ScratchDirectory scratch;
      RunOptions options = plain;
      options.config.penstock.update_in_backward = false;
      make_durable(options, {scratch.path() / "run"}, Commits::behind);
      if (!finished_before_the_next_attempt) {
        options.without_leases = [commit = options.without_leases](
                                     Engine& engine, const RunOptions::ProgramPoint& point) -> Result<void> {
          return point.attempt > 0 ? ok() : commit(engine, point);
        };
      }
      options.trainer_error = [](const RunOptions::ProgramPoint& point) {
        const bool here = point.rank == 1 && point.step == 2 && point.attempt == 0 &&
                          point.place == RunOptions::ProgramPoint::Place::before_step;
        return here ? std::optional(ErrorCode::interrupted) : std::nullopt;
      };

      const RunResult result = train(options);

      ASSERT_FALSE(result.error) << result.error->message();
      EXPECT_EQ(result.interruptions.size(), 2u);
      EXPECT_EQ(result.digest, whole.digest);
    }
  }
}

// Gathers of the next forward wait for the update, which has stopped.
TEST(EngineCommitBehind, ReturnsTheErrorOfTheUpdateBesideGathersThatWaitForIt) {
  std::string digests[2];
  for (const bool fails : {false, true}) {
    const ScratchDirectory scratch;
    tiers::FaultEngine* faults = nullptr;
    const OneRank run = OneRank::create(durable_config(scratch.path()), two_units(),
                                        with_faults(/*of_swap_files=*/true, faults))
                            .value();
    Engine& engine = run.engine();
    run.initialize();
    run.train();
    engine.finish_update().value();
    constexpr auto read = tiers::IoOperation::read;
    if (fails) faults->add(tiers::Fault::fail(read, faults->accepted(read), EIO, 100));
    run.train();
    engine.begin_step({}).value();
    (void)engine.acquire(0, *run.stream);
    std::uint64_t failed = 0;
    while (failed < 100 && !engine.commit()) ++failed;
    EXPECT_EQ(failed > 0, fails);
    for (const std::uint32_t unit : {0u, 1u}) run.train_unit(unit);
    (void)engine.step().value();
    digests[fails] = engine.digest().value();
  }
  EXPECT_EQ(digests[0], digests[1]);
}

// The commit has the states of its step: nothing is updated within the backward before it is made.
TEST(EngineCommitBehind, KeepsUpdatesOutOfTheBackward) {
  const ScratchDirectory scratch;
  Config config = durable_config(scratch.path(), OffloadDevice::cpu);
  config.gradient_clipping = 0;
  config.penstock.update_in_backward = true;
  config.reduce_bucket_size = ElementCount(1);  // each unit is reduced at once
  const OneRank run = OneRank::create(config).value();
  run.initialize();
  const auto updates_in_backward = [&](int attempts) {
    run.engine().begin_step({}).value();
    run.train_unit(1);
    bool updates = false;
    for (int i = 0; i < attempts && !updates; ++i) {
      (void)run.engine().acquire(0, *run.stream).value();         // adds what is reduced
      updates = !run.engine().set_groups(run.engine().groups());  // refused while one is updated
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    run.train_unit(0);
    return updates;
  };
  run.train();
  run.engine().begin_commit().value();

  EXPECT_FALSE(updates_in_backward(/*attempts=*/20));
  (void)run.engine().step().value();  // completes the commit
  EXPECT_TRUE(updates_in_backward(/*attempts=*/6000));
  (void)run.engine().step().value();
  EXPECT_EQ(run.engine().finish_commit().value().generation, 1u);
}

TEST(EngineCommitBehind, StoresWhatHasItsHomeInMemoryWhileTheNextStepGoesOn) {
  const ScratchDirectory scratch;
  Config config = durable_config(scratch.path(), OffloadDevice::nvme);
  config.penstock.host_budget = 64_MiB;
  std::string expected;
  {
    tiers::FaultEngine* faults = nullptr;
    const OneRank run =
        OneRank::create(config, two_units(), with_faults(/*of_swap_files=*/true, faults)).value();
    const MemoryPlan& plan = run.rank->plan();
    ASSERT_TRUE(plan.home_tiles == plan.disk_tiles && !plan.home_tiles.is_zero());
    run.initialize();
    run.train();
    run.engine().finish_update().value();
    expected = run.engine().digest().value();
    const auto written = [&] { return run.rank->runtime().ledger().traffic().written; };
    ASSERT_EQ(written(), 0_B);
    faults->add({.operation = tiers::IoOperation::write,
                 .count = 1'000'000,
                 .effect = tiers::Fault::Effect::delay,
                 .delay = std::chrono::milliseconds(1500)});

    run.engine().begin_commit().value();

    EXPECT_LT(written(), plan.home_tiles);
    (void)run.engine().acquire(0, *run.stream).value();
    const CommitReport report = run.engine().finish_commit().value();
    EXPECT_EQ(written(), plan.home_tiles);
    EXPECT_GE(report.kept, ByteCount(150'000 * 8));    // moments
    EXPECT_GE(report.copied, ByteCount(150'000 * 4));  // parameters, which are the masters
    EXPECT_LT(report.copied, ByteCount(150'000 * 8));
  }
  const OneRank again = OneRank::create(config).value();
  EXPECT_EQ(again.engine().resume().value()->step, 1u);
  EXPECT_EQ(again.engine().digest().value(), expected);
}

TEST(EngineCommitBehind, LeavesTheRunAsItIsWhereAHomeCannotBeStored) {
  const ScratchDirectory scratch;
  Config config = durable_config(scratch.path(), OffloadDevice::nvme);
  config.penstock.host_budget = 64_MiB;
  tiers::FaultEngine* faults = nullptr;
  const OneRank run =
      OneRank::create(config, two_units(), with_faults(/*of_swap_files=*/true, faults)).value();
  run.initialize();
  run.train();
  run.engine().finish_update().value();
  constexpr std::uint64_t failing = 12;
  faults->add(tiers::Fault::fail(tiers::IoOperation::write, 0, ENODEV, failing));

  run.engine().begin_commit().value();
  run.train();
  const auto failed = run.engine().finish_commit();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::io) << failed.error().message();
  for (int step = 0; step < 3; ++step) run.train();
  EXPECT_EQ(run.engine().status(), Engine::Status::ready);
  bool is_committed = false;
  for (std::uint64_t attempt = 0; attempt < failing && !is_committed; ++attempt) {
    const auto again = run.engine().commit();
    is_committed = again.has_value();
    run.train();
  }
  EXPECT_TRUE(is_committed);
}

/// What a run has, or a commit of it.
struct Committed {
  std::uint64_t step;
  std::string digest;
  bool operator==(const Committed&) const = default;
};
Committed now(const OneRank& run) {
  return {run.engine().completed_steps(), run.engine().digest().value()};
}

class EngineCommitBehindOf : public testing::TestWithParam<OffloadDevice> {
 protected:
  [[nodiscard]] Config config() const { return durable_config(scratch_.path(), GetParam()); }
  [[nodiscard]] Committed found() const {
    const OneRank run = OneRank::create(config()).value();
    const auto resumed = run.engine().resume().value();
    return {resumed.value().step, run.engine().digest().value()};
  }

 private:
  ScratchDirectory scratch_;
};

INSTANTIATE_TEST_SUITE_P(Tiers, EngineCommitBehindOf,
                         testing::Values(OffloadDevice::none, OffloadDevice::cpu, OffloadDevice::nvme),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

// Two commits exist while the later one is written; a run that is continued has the earlier one from the start.
TEST_P(EngineCommitBehindOf, HoldsThePredictedBytesOnDisk) {
  for (const bool continued : {false, true}) {
    const OneRank run = OneRank::create(config()).value();
    if (continued) {
      ASSERT_TRUE(run.engine().resume().value());
    } else {
      run.initialize();
    }
    for (int i = 0; i < 2; ++i) {
      run.train();
      run.engine().commit().value();
    }
    for (const tiers::Purpose purpose :
         {tiers::Purpose::parameter_shard, tiers::Purpose::optimizer_tile, tiers::Purpose::commit}) {
      SCOPED_TRACE(std::string(to_string(purpose)) + (continued ? ", continued" : ""));
      const auto line = run.rank->runtime().ledger().line(tiers::Tier::nvme, purpose);
      EXPECT_LE(line.peak, line.predicted);
      EXPECT_GE(line.peak.value(), line.predicted.value() * 9 / 10);
    }
  }
}

TEST_P(EngineCommitBehindOf, MayBeFinishedAfterAnyNumberOfSteps) {
  Committed expected;
  {
    const OneRank run = OneRank::create(config()).value();
    run.initialize();
    run.train();
    expected = now(run);
    run.engine().begin_commit().value();
    for (int step = 0; step < 3; ++step) run.train();
    const CommitReport report = run.engine().finish_commit().value();
    EXPECT_EQ(report.generation, 1u);
    EXPECT_GT(report.copied + report.kept, ByteCount(150'000 * 12));
    EXPECT_GE(report.duration, report.stall);
    EXPECT_GT(report.stall, TimePoint{});
  }
  EXPECT_EQ(found(), expected);
}

TEST_P(EngineCommitBehindOf, IsCompletedByTheNextStep) {
  Committed expected;
  {
    const OneRank run = OneRank::create(config()).value();
    run.initialize();
    run.engine().begin_commit().value();
    expected = now(run);
    run.train();
  }
  EXPECT_EQ(found(), expected);
}

TEST_P(EngineCommitBehindOf, IsGivenUpWithTheEngineBeforeTheNextStep) {
  Committed expected;
  {
    const OneRank run = OneRank::create(config()).value();
    run.initialize();
    run.train();
    (void)run.engine().commit().value();
    expected = now(run);
    run.train();
    run.engine().begin_commit().value();
  }
  EXPECT_EQ(found(), expected);
}

template <class T>
void expect_failed_state(const Result<T>& result, const std::string& advice) {
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code(), ErrorCode::failed_state) << result.error().message();
  EXPECT_NE(result.error().message().find(advice), std::string::npos) << result.error().message();
}

TEST_P(EngineCommitBehindOf, KeepsWhatItReadsUntilItIsFinished) {
  const OneRank run = OneRank::create(config()).value();
  expect_failed_state(run.engine().begin_commit(), "initialize()");
  run.initialize();
  expect_failed_state(run.engine().finish_commit(), "begin_commit()");
  run.train();
  run.engine().begin_commit().value();

  Engine& engine = run.engine();
  const std::string advice = "finish_commit()";
  expect_failed_state(engine.begin_commit(), advice);
  expect_failed_state(engine.commit(), advice);
  expect_failed_state(engine.save_checkpoint("/nowhere"), advice);
  expect_failed_state(engine.park(tiers::Tier::host), advice);
  expect_failed_state(engine.resume(), advice);
  expect_failed_state(engine.initialize(OneRank::fill), advice);
  expect_failed_state(engine.load_checkpoint("/nowhere"), advice);
  auto gradients = engine.gradients(1, *run.stream).value();
  expect_failed_state(engine.finish_commit(), "step");
  engine.abandon_step(*run.stream).value();

  EXPECT_EQ(engine.finish_commit().value().generation, 1u);
  expect_failed_state(engine.finish_commit(), "begin_commit()");
  (void)engine.park(tiers::Tier::host).value();
  expect_failed_state(engine.begin_commit(), "unpark()");
}

// An event that is not recorded leaves it unknown when its copy ends.
TEST(EngineCommitBehind, FailsWhereACopyOfTheDeviceCannotBeFollowed) {
  for (const bool is_finished : {true, false}) {
    SCOPED_TRACE(is_finished);
    const ScratchDirectory scratch;
    DeviceFaults faults;
    OneRank run;
    const auto make = [&faults](ByteCount budget) -> Result<Accelerator> {
      Accelerator made = make_host_accelerator({.memory = budget, .location = tiers::DeviceMemory::separate});
      faults.add_to(made);
      return made;
    };
    run.rank = Rank::create({.config = durable_config(scratch.path(), OffloadDevice::none),
                             .model = two_units(),
                             .make_accelerator = make})
                   .value();
    run.stream = run.rank->device().create_stream().value();
    run.initialize();
    run.train();
    run.engine().finish_update().value();
    faults.failing_records = 1;
    run.engine().begin_commit().value();
    if (!is_finished) continue;  // it is destroyed
    const auto finished = run.engine().finish_commit();
    ASSERT_FALSE(finished);
    EXPECT_STREQ(finished.error().operation(), "Stream::record") << finished.error().message();
    EXPECT_EQ(faults.failing_records, 0u);
  }
}

// Of states that are copied, at each request of the copies.
TEST(EngineCommitBehind, LeavesTheRunAsItIsWhereACopyFails) {
  for (const auto& [tier, call] : {std::pair{OffloadDevice::none, 0u},
                                   {OffloadDevice::none, 1u},
                                   {OffloadDevice::cpu, 0u},
                                   {OffloadDevice::cpu, 1u}}) {
    SCOPED_TRACE(std::string(to_string(tier)) + " " + std::to_string(call));
    const ScratchDirectory scratch;
    const Config config = durable_config(scratch.path(), tier);
    Committed expected;
    {
      tiers::FaultEngine* faults = nullptr;
      const OneRank run =
          OneRank::create(config, two_units(), with_faults(/*of_swap_files=*/false, faults)).value();
      run.initialize();
      run.train();
      // No shorter request would be spared. A store that has failed is not repeated by itself.
      faults->add(tiers::Fault::fail(tiers::IoOperation::write, faults->accepted() + call, ENODEV, 3));
      std::uint32_t failed = 0;
      for (bool is_committed = false; !is_committed && failed < 4;) {
        run.engine().begin_commit().value();
        expected = now(run);
        run.train();
        const auto finished = run.engine().finish_commit();
        is_committed = finished.has_value();
        if (is_committed) continue;
        ++failed;
        EXPECT_EQ(finished.error().code(), ErrorCode::io) << finished.error().message();
        EXPECT_EQ(run.engine().status(), Engine::Status::ready);
      }
      EXPECT_GE(failed, 1u);
      EXPECT_LE(failed, 3u);
    }
    const OneRank again = OneRank::create(config).value();
    EXPECT_EQ(again.engine().resume().value()->step, expected.step);
    EXPECT_EQ(again.engine().digest().value(), expected.digest);
  }
}

}  // namespace
}  // namespace penstock::zero::test
