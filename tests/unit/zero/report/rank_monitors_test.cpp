#include "unit/zero/report/reported_rank.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <regex>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {
namespace {

using penstock::test::ScratchDirectory;
using test::contents;
using test::initialized;
using test::options;
using test::step;

TEST(RankMonitors, LogTheTimesOfEachStepAsDeepSpeed) {
  const ScratchDirectory scratch;
  std::vector<std::string> lines;
  Rank::Options logged = options(scratch);
  logged.config.wall_clock_breakdown = true;
  logged.log = [&](std::string_view line) { lines.emplace_back(line); };
  const auto rank = initialized(std::move(logged));

  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*rank));

  ASSERT_EQ(lines.size(), 2u);
  EXPECT_TRUE(std::regex_match(
      lines[0], std::regex(R"(time \(ms\) \| fwd: \d+\.\d\d \| bwd: \d+\.\d\d \| bwd_inner: \d+\.\d\d \| )"
                           R"(bwd_allreduce: \d+\.\d\d \| step: \d+\.\d\d)")))
      << lines[0];
}

TEST(RankMonitors, WriteTheFiguresOfEachStepAndThoseOfTheTrainer) {
  const ScratchDirectory scratch;
  Rank::Options monitored = options(scratch);
  monitored.config.csv_monitor = {.enabled = true, .output_path = scratch.path().string(), .job_name = "job"};
  monitored.config.train_batch_size = monitored.config.micro_batch_size = 4;
  monitored.config.optimizer.learning_rate = 0.25;
  monitored.config.wall_clock_breakdown = true;
  monitored.log = [](std::string_view) {};
  const auto rank = initialized(std::move(monitored));

  for (int i = 0; i < 2; ++i) ASSERT_TRUE(step(*rank));
  ASSERT_TRUE(rank->write_events(std::vector<MonitorEvent>{{"Train/Samples/train_loss", 1.5, 8}}));

  const auto csv = [&](const std::string& name) {
    return contents(scratch.path() / "job" / (name + ".csv"));
  };
  EXPECT_EQ(csv("Train_Samples_lr"), "step,lr\r\n4,0.25\r\n8,0.25\r\n");
  EXPECT_EQ(csv("Train_Samples_train_loss"), "step,train_loss\r\n8,1.5\r\n");
  EXPECT_EQ(csv("Train_Samples_loss_scale"), "");  // only with fp16
  for (const char* timer : {"forward", "backward", "backward_inner", "backward_allreduce", "step"})
    EXPECT_NE(csv(std::string("Train_Samples_elapsed_time_ms_") + timer), "") << timer;
  EXPECT_TRUE(csv("Penstock_gradient_norm").ends_with("\r\n8,0\r\n"));
  EXPECT_NE(csv("Penstock_read_bytes"), "");
}

TEST(RankMonitors, MakeNothingForAStartThatIsRefused) {
  const ScratchDirectory scratch;
  Rank::Options refused = options(scratch);
  refused.config.csv_monitor = {.enabled = true, .output_path = (scratch.path() / "csv").string()};
  refused.config.tensorboard = {.enabled = true, .output_path = (scratch.path() / "tensorboard").string()};
  refused.config.penstock.host_budget = ByteCount(4096);

  ASSERT_FALSE(Rank::create(std::move(refused)));

  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "csv"));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "tensorboard"));
}

TEST(RankMonitors, RefuseNamesThatAreNone) {
  const ScratchDirectory scratch;
  const auto rank = initialized(options(scratch));
  for (const std::string& name : {std::string(), std::string("a\nb"), std::string(252, 'n')}) {
    const auto written = rank->write_events(std::vector<MonitorEvent>{{"good", 1, 1}, {name, 1, 1}});
    ASSERT_FALSE(written);
    EXPECT_EQ(written.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(written.error().message().find("events[1].name"), std::string::npos)
        << written.error().message();
  }
  const auto late = rank->write_events(std::vector<MonitorEvent>{{"good", 1, std::uint64_t{1} << 63}});
  ASSERT_FALSE(late);
  EXPECT_NE(late.error().message().find("events[0].place"), std::string::npos) << late.error().message();
}

TEST(RankMonitors, GoOnAfterAnEventThatIsRefused) {
  const ScratchDirectory scratch;
  Rank::Options monitored = options(scratch);
  monitored.config.csv_monitor = {.enabled = true, .output_path = scratch.path().string(), .job_name = "job"};
  const auto rank = initialized(std::move(monitored));

  EXPECT_FALSE(rank->write_events(std::vector<MonitorEvent>{{"first", 1, 1}, {std::string(252, 'n'), 1, 1}}));
  EXPECT_FALSE(std::filesystem::exists(scratch.path() / "job" / "first.csv"));
  EXPECT_TRUE(rank->write_events(std::vector<MonitorEvent>{{std::string(251, 'n'), 1, 1}}));
  EXPECT_TRUE(std::filesystem::exists(scratch.path() / "job" / (std::string(251, 'n') + ".csv")));
}

TEST(RankMonitors, EndWithTheirFirstErrorAndTheRunGoesOn) {
  const ScratchDirectory scratch;
  Rank::Options monitored = options(scratch);
  monitored.config.csv_monitor = {.enabled = true, .output_path = scratch.path().string(), .job_name = "job"};
  const auto rank = initialized(std::move(monitored));
  std::filesystem::create_directory(scratch.path() / "job" / "Train_Samples_lr.csv");

  ASSERT_TRUE(step(*rank));
  ASSERT_TRUE(step(*rank));

  ASSERT_EQ(rank->notes().size(), 1u);
  EXPECT_NE(rank->notes()[0].find("Train_Samples_lr.csv"), std::string::npos) << rank->notes()[0];
  EXPECT_TRUE(rank->write_events(std::vector<MonitorEvent>{{"a", 1, 1}}));
}

}  // namespace
}  // namespace penstock::zero
