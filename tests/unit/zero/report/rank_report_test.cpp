#include "swap/simulate/replay.hpp"
#include "unit/zero/report/reported_rank.hpp"
#include "zero/simulate/planned_step.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <gtest/gtest.h>
#include <json/json.h>
#include <chrono>
#include <csignal>
#include <fstream>
#include <initializer_list>
#include <numeric>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;
using test::contents;
using test::initialized;
using test::options;
using test::step;

Json::Value parse(const std::string& text) {
  std::istringstream stream(text);
  Json::Value json;
  stream >> json;
  return json;
}

TEST(RankReport, SaysWhatItsCallsWaitedForAndWhatWouldHelp) {
  const ScratchDirectory scratch;
  const auto rank = initialized(options(scratch));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(step(*rank));
  ASSERT_TRUE(rank->engine().finish_update());

  const RunReport report = rank->report();

  EXPECT_EQ(report.steps, 3u);
  const StepTimes times = rank->engine().step_times();
  EXPECT_EQ(times.steps, 3u);
  EXPECT_LT(times.waiting, times.forward + times.backward + times.stepping);
  EXPECT_GT(times.updating, TimePoint());
  EXPECT_GT(report.elapsed, TimePoint());
  EXPECT_EQ(std::accumulate(report.stalls.begin(), report.stalls.end(), TimePoint(),
                            [](TimePoint sum, const auto& stall) { return sum + stall.time; }),
            report.stalled);
  EXPECT_NE(report.changes_note.find("a step takes"), std::string::npos) << report.changes_note;
  EXPECT_GT(report.predicted_step, TimePoint());
  EXPECT_EQ(report.step, (times.forward + times.backward + times.stepping + times.between) / 3);
  for (const RunReport::Change& change : report.changes) {
    EXPECT_GT(change.saves, 0);
    EXPECT_LT(change.saves, 1);
  }
  EXPECT_TRUE(std::is_sorted(report.changes.begin(), report.changes.end(),
                             [](const auto& a, const auto& b) { return a.saves > b.saves; }));
  EXPECT_EQ(rank->report(/*with_changes=*/false).changes_note, "");
  ASSERT_EQ(report.drives.size(), 1u);
  EXPECT_GT(report.drives[0].busy, TimePoint());
  EXPECT_LT(report.drives[0].busy, report.elapsed);
}

/// Of a rank whose every step ends with its update and its stores: as in a replay, each transfer ends before the next
/// use.
RunReport::StepTraffic replayed(const Rank& rank, std::uint32_t micro_batches) {
  const simulate::PlannedStep step =
      simulate::plan_step(rank.config(), rank.model(), rank.plan(), {.micro_batches = micro_batches}).value();
  const auto replay = swap::Replay::create(step.trace, {.host_budget = step.options.host_budget,
                                                        .eviction = step.options.eviction,
                                                        .lookahead = step.options.lookahead,
                                                        .dropped_ahead = step.options.dropped_ahead})
                          .value();
  swap::ReplayedRound round;
  for (int i = 0; i < 4; ++i) round = replay->round().value();
  return {round.read, round.written};
}

/// What is read and written in each of a few steps, and what the report says of it.
void expect_predicted_traffic(Rank::Options options, std::uint32_t micro_batches) {
  const auto rank = initialized(std::move(options));
  const RunReport::StepTraffic wanted = replayed(*rank, micro_batches);
  EXPECT_EQ(rank->report().step_traffic, RunReport::StepTraffic());
  for (int i = 0; i < 6; ++i) {
    const auto before = rank->runtime().ledger().traffic();
    ASSERT_TRUE(step(*rank, micro_batches));
    ASSERT_TRUE(rank->engine().finish_update());
    rank->runtime().wait_for_stores(0);
    if (i < 2) continue;  // the first one begins with all in memory
    const auto after = rank->runtime().ledger().traffic();
    EXPECT_EQ(after.read - before.read, wanted.read) << "step " << i;
    EXPECT_EQ(after.written - before.written, wanted.written) << "step " << i;
  }

  const RunReport report = rank->report();

  EXPECT_EQ(rank->engine().step_times().micro_batches, 6 * micro_batches);
  // Tiles of an update may be read before its step has ended: of one in five steps.
  const auto near = [](ByteCount got, ByteCount exact) {
    return got * 5 + 5_B >= exact * 4 && got * 5 <= exact * 6;
  };
  EXPECT_TRUE(near(report.step_traffic.read, wanted.read)) << report.changes_note;
  EXPECT_TRUE(near(report.step_traffic.written, wanted.written)) << report.changes_note;
  EXPECT_EQ(report.predicted_step_traffic.written.is_zero(), wanted.written.is_zero());
  RunReport::StepTraffic moved, predicted;
  for (const RunReport::Traffic& one : report.traffic) {
    moved = {moved.read + one.step.read, moved.written + one.step.written};
    predicted = {predicted.read + one.predicted_step.read, predicted.written + one.predicted_step.written};
  }
  const ByteCount rounded(report.traffic.size());  // each is a mean
  EXPECT_LE(moved.read, report.step_traffic.read);
  EXPECT_GE(moved.read + rounded, report.step_traffic.read);
  EXPECT_LE(moved.written, report.step_traffic.written);
  EXPECT_GE(moved.written + rounded, report.step_traffic.written);
  EXPECT_LE(predicted.read, report.predicted_step_traffic.read);
  EXPECT_GE(predicted.read + rounded, report.predicted_step_traffic.read);
  EXPECT_LE(predicted.written, report.predicted_step_traffic.written);
  EXPECT_GE(predicted.written + rounded, report.predicted_step_traffic.written);
  ASSERT_EQ(report.drives.size(), 1u) << "which does all of it";
  const RunReport::Drive& drive = report.drives[0];
  // A request that has ended may be counted before what waits for it.
  EXPECT_TRUE(near(drive.step.read, report.step_traffic.read));
  EXPECT_TRUE(near(drive.step.written, report.step_traffic.written));
  EXPECT_EQ(drive.predicted_step.read, report.predicted_step_traffic.read);
  EXPECT_EQ(drive.predicted_step.written, report.predicted_step_traffic.written);
  EXPECT_EQ(drive.step.busy > TimePoint(), !wanted.written.is_zero());
}

// As planned, where a part of what is on disk stays in memory, and where all of it does. `begin_step()` is given
// another number of micro-batches than the configuration.
TEST(RankReport, HasTheBytesThatAStepMovesAsTheyArePredicted) {
  for (const cpu_adam::StateFormat format :
       {cpu_adam::StateFormat::fp32, cpu_adam::StateFormat::split_bf16, cpu_adam::StateFormat::split_q8}) {
    for (const ByteCount more : {0_B, 100_KiB, 300_KiB, 4_MiB}) {
      for (const OffloadDevice parameters : {OffloadDevice::cpu, OffloadDevice::nvme}) {
        for (const std::uint32_t micro_batches : {1u, 3u}) {
          const ScratchDirectory scratch;
          Rank::Options of_step = options(scratch);
          Config& config = of_step.config;
          for (const char* name : {"third", "fourth", "fifth", "sixth"})
            of_step.model.units.push_back(
                {.name = name, .parameters = {{"weight", ElementCount(40'000), 0}}});
          config.stage = 3;
          config.offload_param = {.device = parameters, .nvme_paths = config.offload_optimizer.nvme_paths};
          config.penstock.state_format = format;
          // Each micro-batch reads its parameters.
          config.prefetch_bucket_size = config.max_live_parameters = ElementCount(1);
          config.model_persistence_threshold = ElementCount(0);
          if (format != cpu_adam::StateFormat::fp32) config.dtype = config.grad_accum_dtype = DType::bf16;
          const MemoryPlan least =
              plan_memory(config, of_step.model, 1, 1, tiers::DeviceMemory::host).value();
          config.penstock.host_budget = least.host_budget + more;
          SCOPED_TRACE(std::string(to_string(format)) + ", parameters on " +
                       std::string(to_string(parameters)) + ", " + std::to_string(micro_batches) +
                       " micro-batches, " + to_string(more) + " more");
          expect_predicted_traffic(std::move(of_step), micro_batches);
        }
      }
    }
  }
}

TEST(RankReport, SaysThatItsPredictionHasNoLimitOfTheMemory) {
  const ScratchDirectory scratch;
  Rank::Options roomy = options(scratch);
  roomy.config.penstock.host_budget = 16_MiB;
  const auto rank = initialized(std::move(roomy));
  ASSERT_TRUE(step(*rank));
  ASSERT_TRUE(rank->engine().finish_update());
  constexpr std::string_view of_all = "all of the host memory";
  EXPECT_EQ(rank->report().changes_note.find(of_all), std::string::npos);

  const auto refused = rank->runtime().limit_memory(rank->runtime().memory_least() - 4_KiB);
  EXPECT_NE(refused.error().message().find("the runtime's engines need more host memory for progress"),
            std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find(" for what moves"), std::string::npos)
      << refused.error().message();
  ASSERT_TRUE(rank->runtime().limit_memory(rank->runtime().memory_least()));

  const std::string note = rank->report().changes_note;
  EXPECT_NE(note.find(of_all), std::string::npos) << note;
}

TEST(RankReport, SaysWhyNoChangeIsSimulated) {
  const ScratchDirectory scratch;
  EXPECT_EQ(initialized(options(scratch))->report().changes_note, "no step has ended");
}

TEST(RankReport, HasTheLimitsAndTheEnduranceOfTheConfiguration) {
  const ScratchDirectory scratch;
  Rank::Options limited = options(scratch);
  limited.config.penstock.path_limits = {3e9};
  limited.config.penstock.path_endurance = {ByteCount(600'000'000'000'000)};
  limited.identity = {.local_ranks = 1};

  const RunReport report = initialized(std::move(limited))->report();

  ASSERT_EQ(report.drives.size(), 1u);
  EXPECT_EQ(report.drives[0].limit, 3e9);
  EXPECT_EQ(report.drives[0].endurance, ByteCount(600'000'000'000'000));
}

TEST(RankReport, IsWrittenToItsFileWhenTheRankBeginsAndWhenItEnds) {
  const ScratchDirectory scratch;
  const auto file = scratch.path() / "report.json";
  Rank::Options reported = options(scratch);
  reported.config.penstock.report_file = file;

  auto rank = initialized(std::move(reported));
  EXPECT_EQ(parse(contents(file))["steps"], 0);
  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*rank));
  rank.reset();

  const Json::Value report = parse(contents(file));
  EXPECT_EQ(report["steps"], 2);
  EXPECT_NE(report["changes_note"].asString(), "");
  // The update of the last step is in it.
  EXPECT_EQ(report["traffic"][0]["predicted_written"], report["traffic"][0]["written"]);
}

TEST(RankReport, IsWrittenAgainWhereItsDirectoryComesBack) {
  const ScratchDirectory scratch;
  const auto directory = scratch.path() / "reports";
  std::filesystem::create_directory(directory);
  Rank::Options reported = options(scratch);
  reported.config.penstock.report_file = directory / "report.json";
  std::vector<std::string> log;
  reported.log = [&](std::string_view line) { log.emplace_back(line); };
  const auto copy = reported;
  {
    const auto rank = initialized(std::move(reported));
    std::filesystem::remove_all(directory);
    ASSERT_TRUE(step(*rank));
    std::filesystem::create_directory(directory);
  }
  EXPECT_EQ(parse(contents(directory / "report.json"))["steps"], 1);
  EXPECT_TRUE(log.empty());
  {
    const auto rank = initialized(copy);
    std::filesystem::remove_all(directory);
  }
  ASSERT_EQ(log.size(), 1u);
  EXPECT_NE(log[0].find("report.json"), std::string::npos) << log[0];
}

TEST(RankReport, PredictsTheBoundOfEveryOrderOnceTheTrainersTakesMoreThanThePlanned) {
  const ScratchDirectory scratch;
  Rank::Options separate = options(scratch);
  separate.config.stage = 3;
  separate.config.prefetch_bucket_size = separate.config.max_live_parameters = ElementCount(1);
  separate.config.model_persistence_threshold = ElementCount(0);
  separate.make_accelerator = [](ByteCount memory) -> Result<Accelerator> {
    return make_host_accelerator({.memory = memory, .location = tiers::DeviceMemory::separate});
  };
  for (const char* name : {"third", "fourth"})
    separate.model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(40'000), 0}}});
  const auto rank = initialized(std::move(separate));
  const MemoryPlan& plan = *rank->plans()[0];
  ASSERT_GT(plan.device_gathered_max, plan.device_gathered);
  const auto predicted = [&](tiers::Purpose purpose) {
    return rank->runtime().ledger().line(tiers::Tier::device, purpose).predicted;
  };
  const auto stream = rank->device().create_stream().value();
  const auto acquire = [&](std::uint32_t unit) { rank->engine().acquire(unit, *stream).value().end(); };
  const auto run_step = [&](std::initializer_list<std::uint32_t> forward) {
    rank->engine().begin_step({}).value();
    for (const std::uint32_t unit : forward) acquire(unit);
    for (std::uint32_t unit = 4; unit-- > 0;) {
      acquire(unit);
      auto gradients = rank->engine().gradients(unit, *stream).value();
      for (const GradientSlot& slot : gradients.slots())
        ASSERT_TRUE(rank->device().fill_zero(stream->handle(), slot.tensor.bytes));
      ASSERT_TRUE(rank->engine().reduce(std::move(gradients), *stream));
    }
    ASSERT_TRUE(rank->engine().step());
  };

  for (int i = 0; i < 2; ++i) run_step({0, 1, 2, 3});
  EXPECT_EQ(predicted(tiers::Purpose::gathered_flat), plan.device_gathered);
  EXPECT_EQ(predicted(tiers::Purpose::full_gradient), plan.device_gradients);
  EXPECT_TRUE(rank->runtime().take_messages().empty());
  for (int i = 0; i < 2; ++i) {
    {
      const auto first = rank->engine().acquire(0, *stream).value();
      const auto last = rank->engine().acquire(3, *stream).value();
    }
    run_step({0, 1, 2, 3});

    const auto line = rank->runtime().ledger().line(tiers::Tier::device, tiers::Purpose::gathered_flat);
    EXPECT_GT(line.peak, plan.device_gathered);
    EXPECT_EQ(line.predicted, plan.device_gathered_max);
    EXPECT_EQ(predicted(tiers::Purpose::full_gradient), plan.device_gradients) << "has not taken more";
    const std::vector<std::string> messages = rank->runtime().take_messages();
    ASSERT_EQ(messages.size(), i == 0 ? 1u : 0u) << "is said once";
    for (const std::string& message : messages) {
      for (const std::string& word : {std::string("step 3: gathered flats"), to_string(line.peak),
                                      to_string(plan.device_gathered), to_string(plan.device_gathered_max)})
        EXPECT_NE(message.find(word), message.npos) << word << " in: " << message;
    }
  }
}

TEST(RankReport, AndTimelineHaveFilesOfTheirOwn) {
  const ScratchDirectory scratch;
  Rank::Options same = options(scratch);
  same.config.penstock.report_file = same.config.penstock.timeline_file = scratch.path() / "file.json";

  const auto rank = Rank::create(std::move(same));

  ASSERT_FALSE(rank);
  EXPECT_EQ(rank.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(rank.error().message().find("penstock.timeline_file"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "file.json"));
}

TEST(RankReport, AndTimelineHaveFilesOfTheirOwnByAnyName) {
  const ScratchDirectory scratch;
  std::filesystem::create_directory_symlink(scratch.path(), scratch.path() / "link");
  std::filesystem::create_symlink("file.json", scratch.path() / "leads to none yet.json");
  for (const char* const name : {"link/file.json", "leads to none yet.json"}) {
    Rank::Options same = options(scratch);
    same.config.penstock.report_file = scratch.path() / "file.json";
    same.config.penstock.timeline_file = scratch.path() / name;

    const auto rank = Rank::create(std::move(same));

    ASSERT_FALSE(rank) << name;
    EXPECT_EQ(rank.error().code(), ErrorCode::invalid_config);
    EXPECT_NE(rank.error().message().find(name), std::string::npos) << rank.error().message();
  }
}

TEST(RankReport, IsWrittenByItsExtension) {
  EXPECT_EQ(report_format_of("a/run.json"), ReportFormat::json);
  EXPECT_EQ(report_format_of("run.prom"), ReportFormat::prometheus);
  for (const char* other : {"run.txt", "run", "json", "run.json.old"})
    EXPECT_EQ(report_format_of(other), ReportFormat::text);
}

TEST(RankReport, ThatCannotBeWrittenIsAnErrorAtTheBegin) {
  const ScratchDirectory scratch;
  for (const char* key : {"report_file", "timeline_file", "csv_monitor", "tensorboard"}) {
    Rank::Options wrong = options(scratch);
    const auto none = scratch.path() / "none" / "file";
    std::ofstream(scratch.path() / "file") << "is no directory";
    const MonitorConfig monitor{.enabled = true, .output_path = (scratch.path() / "file").string()};
    const std::string name = key;
    if (name == "report_file") wrong.config.penstock.report_file = none;
    if (name == "timeline_file") wrong.config.penstock.timeline_file = none;
    if (name == "csv_monitor") wrong.config.csv_monitor = monitor;
    if (name == "tensorboard") wrong.config.tensorboard = monitor;

    const auto rank = Rank::create(std::move(wrong));

    ASSERT_FALSE(rank) << key;
    EXPECT_NE(rank.error().message().find("file"), std::string::npos) << rank.error().message();
    if (name == "report_file") {
      EXPECT_NE(rank.error().message().find("penstock.report_file"), std::string::npos);
    }
  }
}

TEST(RankReport, DoesNotCountAnEvaluationBeforeAStep) {
  const ScratchDirectory scratch;
  const auto rank = initialized(options(scratch));
  auto stream = rank->device().create_stream().value();
  rank->engine().acquire(0, *stream).value().end();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));

  const TimePoint began = Clock::steady().now();
  const StepOutcome outcome = step(*rank).value();

  EXPECT_LE(outcome.forward + outcome.backward + outcome.stepping, Clock::steady().now() - began);
}

TEST(RankReport, OfSeveralRanksHasTheirNumbersInItsFilesNames) {
  constexpr std::uint32_t ranks = 2;
  const ScratchDirectory scratch;
  Rank::Options given = options(scratch);
  given.config.penstock.report_file = scratch.path() / "report.prom";
  given.config.penstock.timeline_file = scratch.path() / "timeline";
  given.config.csv_monitor = {.enabled = true, .output_path = scratch.path().string(), .job_name = "job"};
  auto group = InProcessGroup::create(ranks).value();
  std::vector<std::thread> threads;
  for (std::uint32_t r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      Rank::Options mine = given;
      mine.identity = RankIdentity::local(r, ranks);
      mine.group = in_process_membership(group, r);
      EXPECT_TRUE(step(*initialized(std::move(mine))));
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_NE(contents(scratch.path() / "report.rank0.prom").find("rank=\"0\""), std::string::npos);
  EXPECT_NE(contents(scratch.path() / "report.rank1.prom").find("rank=\"1\""), std::string::npos);
  EXPECT_TRUE(std::filesystem::exists(scratch.path() / "timeline.rank1"));
  EXPECT_EQ(contents(scratch.path() / "job" / "Train_Samples_lr.csv"), "step,lr\r\n2,0.001\r\n");  // once
}

}  // namespace
}  // namespace penstock::zero
