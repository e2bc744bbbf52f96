#include "gpt/timeline.hpp"

#include "gpt/trace_report.hpp"
#include "kit/manual_stream_clock.hpp"
#include "kit/run_program.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <fstream>
#include <iterator>
#include <set>

namespace gpt {
namespace {

using penstock::ByteCount;
using penstock::StreamHandle;
using penstock::TimePoint;
using penstock::test::ManualStreamClock;

class TimelineTest : public testing::Test {
 protected:
  StreamHandle compute() { return StreamHandle::from_native(&compute_); }
  StreamHandle copies() { return StreamHandle::from_native(&copies_); }

  ManualStreamClock* clock_ = new ManualStreamClock;
  Timeline timeline_{std::unique_ptr<penstock::tiers::StreamClock>(clock_)};

 private:
  int compute_ = 0, copies_ = 0;
};

TEST_F(TimelineTest, GivesTheSpansOfAStreamOnceItHasPassedThem) {
  timeline_.begin(compute());
  timeline_.end(compute(), {.activity = Activity::wait_for_parameters, .unit = 3});
  timeline_.end(compute(), {.activity = Activity::forward, .unit = 3});

  clock_->pass(2);
  const auto first = timeline_.take();
  clock_->pass(3);
  const auto second = timeline_.take();

  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].did.activity, Activity::wait_for_parameters);
  EXPECT_EQ(first[0].did.unit, 3u);
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].did.activity, Activity::forward);
  EXPECT_EQ(second[0].begin, first[0].end);
  EXPECT_EQ(second[0].end, TimePoint(200));
  EXPECT_TRUE(timeline_.take().empty());
  timeline_.begin(compute());
  EXPECT_EQ(clock_->numbers(), 3u) << "the marks are used again";
}

TEST_F(TimelineTest, LeavesOutWhatIsBetweenAnEndAndTheNextBegin) {
  for (int copy = 0; copy < 2; ++copy) {
    timeline_.begin(copies());
    timeline_.end(copies(), {.activity = Activity::copy_to_device, .bytes = ByteCount(7)});
  }
  clock_->pass(4);

  const auto spans = timeline_.take();

  ASSERT_EQ(spans.size(), 2u);
  EXPECT_EQ(spans[0].end, TimePoint(100));
  EXPECT_EQ(spans[1].begin, TimePoint(200));
  EXPECT_EQ(spans[1].did.bytes, ByteCount(7));
}

TEST_F(TimelineTest, HoldsNoStreamForTheMarksOfAnother) {
  timeline_.name_stream(compute(), "compute");
  timeline_.begin(copies());                                      // mark 0
  timeline_.begin(compute());                                     // 1
  timeline_.end(compute(), {.activity = Activity::backward});     // 2
  timeline_.end(copies(), {.activity = Activity::copy_to_host});  // 3
  clock_->pass(3);

  const auto spans = timeline_.take();

  ASSERT_EQ(spans.size(), 1u);
  EXPECT_EQ(timeline_.tracks().at(spans[0].track), "compute");
}

TEST_F(TimelineTest, BecomesAChromeTraceOfCompleteEvents) {
  const penstock::test::ScratchDirectory directory;
  const auto file = directory.path() / "trace.json";
  auto report = TraceReport::create(file, {"embed", "block.0"}).value();
  timeline_.name_stream(compute(), "compute");
  timeline_.begin(compute());
  timeline_.end(compute(), {.activity = Activity::wait_for_parameters, .unit = 1});
  timeline_.end(compute(), {.activity = Activity::backward, .unit = 1});
  const auto disk = timeline_.add_track("disk 1");
  timeline_.add({.track = disk,
                 .did = {.activity = Activity::disk, .bytes = ByteCount(4096)},
                 .begin = TimePoint(50),
                 .end = TimePoint(1050)});
  timeline_.begin(copies());
  timeline_.end(copies(), {.activity = Activity::adam, .bytes = ByteCount(2048)});
  clock_->pass(5);

  report->add(/*rank=*/1, timeline_);
  ASSERT_TRUE(report->finish());

  std::ifstream in(file);
  const penstock::test::ProgramResult text{
      .status = 0, .out = {std::istreambuf_iterator<char>(in), {}}, .err = {}};
  const Json::Value events = text.json()["traceEvents"];
  std::map<std::string, Json::Value> by_name;
  for (const Json::Value& event : events)
    by_name[event["name"].asString() + event["args"]["name"].asString()] = event;
  ASSERT_EQ(by_name.size(), 7u) << text.out;
  EXPECT_EQ(by_name.at("thread_namecompute")["tid"], by_name.at("backward block.0")["tid"]);
  const Json::Value wait = by_name.at("wait for parameters of block.0"),
                    read = by_name.at("read and write 4.0 KiB");
  EXPECT_EQ(wait["ph"].asString(), "X");
  EXPECT_EQ(wait["pid"].asUInt(), 1u);
  EXPECT_NEAR(by_name.at("backward block.0")["ts"].asDouble(), 0.1, 1e-3);  // microseconds
  EXPECT_NEAR(by_name.at("backward block.0")["dur"].asDouble(), 0.1, 1e-3);
  EXPECT_NEAR(read["dur"].asDouble(), 1.0, 1e-3);
  EXPECT_EQ(by_name.at("Adam 2.0 KiB")["cat"].asString(), "kernel");
  EXPECT_EQ(by_name.at("Adam 2.0 KiB")["tid"], by_name.at("thread_namestream 2")["tid"]);

  testing::internal::CaptureStdout();
  report->print();
  const std::string summary = testing::internal::GetCapturedStdout();
  EXPECT_NE(summary.find("stream 2     busy   9.5 %  Adam 9.5 %, 2.0 KiB\n"), std::string::npos) << summary;
  EXPECT_NE(summary.find("reads and writes 95.2 %, 4.0 KiB"), std::string::npos) << summary;
}

TEST(TraceReport, NamesAFileThatItCannotWrite) {
  const auto missing = TraceReport::create("/nonexistent/trace.json", {});
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().code(), penstock::ErrorCode::not_found);
  EXPECT_NE(missing.error().message().find("/nonexistent/trace.json"), std::string::npos);

  auto full = TraceReport::create("/dev/full", {}).value();
  EXPECT_FALSE(full->finish());
}

}  // namespace
}  // namespace gpt
