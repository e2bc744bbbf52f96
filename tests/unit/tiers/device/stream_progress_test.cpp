#include "tiers/device/stream_progress.hpp"

#include "kit/counting_device.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

class StreamProgressTest : public testing::Test {
 protected:
  /// A point after one more operation.
  StreamProgress::Point point() {
    stream_->handle().host_queue()->enqueue([] {});
    return progress_->record(*stream_, pool_, 1_MiB, "copy").value();
  }
  /// The queries until the stream has passed a point that it reaches after `time`, each when next_query() says.
  std::uint64_t queries_during(TimePoint time) {
    const auto last = point();
    const TimePoint end = clock_.now() + time;
    const std::uint64_t before = queries();
    while (clock_.now() < end) {
      EXPECT_FALSE(has_passed(last));
      EXPECT_FALSE(has_passed(last));  // without a query: it is not time
      clock_.advance_to(clock_.now() + progress_->next_query());
    }
    late_ = clock_.now() - end;
    run(2);
    EXPECT_TRUE(has_passed(last));
    return queries() - before;
  }
  bool has_passed(const StreamProgress::Point& point) { return progress_->has_passed(point).value(); }
  void run(int operations) {
    for (int i = 0; i < operations; ++i) ASSERT_TRUE(host_->run_one());
  }
  std::uint64_t queries() const { return device_.calls().queries; }

  HostDevice* const host_ =
      new HostDevice({.memory = 1_MiB, .mode = HostDevice::Mode::deferred});  // of device_
  test::CountingDevice device_{std::unique_ptr<Device>(host_)};
  std::unique_ptr<Stream> stream_ = device_.create_stream().value();
  EventPool pool_{device_};
  SimClock clock_;
  std::optional<StreamProgress> progress_{std::in_place, StreamProgress::Options{}};
  TimePoint late_{};
};

TEST_F(StreamProgressTest, QueriesOnlyTheFirstPointThatIsNotPassed) {
  std::vector<StreamProgress::Point> points;
  for (int i = 0; i < 5; ++i) points.push_back(point());

  for (const auto& each : points) EXPECT_FALSE(has_passed(each));
  EXPECT_EQ(queries(), 1u);

  run(3 * 2);  // each point is an operation and a record
  EXPECT_TRUE(has_passed(points[0]));
  EXPECT_TRUE(has_passed(points[0]));
  EXPECT_EQ(queries(), 2u);
  EXPECT_TRUE(has_passed(points[1]));
  EXPECT_TRUE(has_passed(points[2]));
  EXPECT_FALSE(has_passed(points[3]));
  EXPECT_FALSE(has_passed(points[4]));
  EXPECT_EQ(queries(), 5u);
}

TEST_F(StreamProgressTest, QueriesForAPointWhoseOwnerIsGone) {
  auto first = std::make_unique<StreamProgress::Point>(point());
  auto second = point(), third = point();
  run(2 * 2);
  first.reset();
  second = StreamProgress::Point();

  EXPECT_FALSE(has_passed(third));
  run(2);
  EXPECT_TRUE(has_passed(third));
}

TEST_F(StreamProgressTest, NeedsNoQueryWithoutPoints) {
  EXPECT_EQ(progress_->next_query(), forever);
  const auto one = point();
  EXPECT_EQ(progress_->next_query(), TimePoint::zero());
}

class PacedProgress : public StreamProgressTest {
 protected:
  PacedProgress() {
    progress_.emplace(StreamProgress::Options{.clock = &clock_, .deadline = deadline, .work = "test copies"});
  }
  static constexpr TimePoint deadline = std::chrono::seconds(64), step = std::chrono::seconds(1);
  /// Queries for `time`, in steps that count in full.
  Result<bool> query_for(const StreamProgress::Point& point, TimePoint time) {
    for (TimePoint passed{}; passed < time; passed += step) {
      clock_.advance_to(clock_.now() + step);
      PENSTOCK_TRY_ASSIGN(const bool has, progress_->has_passed(point));
      if (has) return true;
    }
    return false;
  }
};

TEST_F(PacedProgress, NeedsFewQueriesOnceItKnowsTheRate) {
  for (const TimePoint time : {std::chrono::microseconds(300), std::chrono::microseconds(4000)}) {
    for (int copy = 0; copy < 30; ++copy) queries_during(time);
    EXPECT_LE(queries_during(time), 5u);
    EXPECT_LE(late_, time / 4);
  }
}

// A copy whose stream waits for the trainer takes a thousand times as long as others.
TEST_F(PacedProgress, IsNotMisledByACopyThatHadToWait) {
  EXPECT_LE(queries_during(std::chrono::milliseconds(300)), 330u);

  std::vector<TimePoint> late;
  for (int copy = 0; copy < 60; ++copy) {
    queries_during(std::chrono::microseconds(300));
    late.push_back(late_);
  }

  EXPECT_LE(late.front(), std::chrono::milliseconds(5));
  EXPECT_LE(late.back(), std::chrono::microseconds(75));
}

TEST_F(PacedProgress, RemembersTheRateBesidesACopyThatHadToWait) {
  for (int copy = 0; copy < 30; ++copy) queries_during(std::chrono::microseconds(300));
  queries_during(std::chrono::milliseconds(300));

  queries_during(std::chrono::microseconds(300));

  EXPECT_LE(late_, std::chrono::microseconds(75));
}

TEST_F(PacedProgress, LearnsNothingFromAPointThatHadPassedUnseen) {
  for (int copy = 0; copy < 30; ++copy) queries_during(std::chrono::microseconds(1000));
  const auto first = point(), second = point();
  clock_.advance_to(clock_.now() + std::chrono::microseconds(1000));
  run(2 * 2);
  EXPECT_TRUE(has_passed(first));
  EXPECT_TRUE(has_passed(second));  // at the same time

  EXPECT_LE(queries_during(std::chrono::microseconds(1000)), 5u);
}

TEST_F(PacedProgress, FailsWhenTheStreamPassesNothingForTheDeadline) {
  const auto first = point(), second = point();
  ASSERT_FALSE(query_for(first, deadline).value());
  EXPECT_FALSE(progress_->hangs());

  const auto late = query_for(first, 2 * step);

  ASSERT_FALSE(late);
  EXPECT_EQ(late.error().code(), ErrorCode::deadline_exceeded);
  EXPECT_NE(late.error().message().find("test copies"), std::string::npos) << late.error().message();
  EXPECT_NE(late.error().message().find("none in 64 s"), std::string::npos) << late.error().message();
  EXPECT_TRUE(progress_->hangs());
}

TEST_F(PacedProgress, EndlesslyWaitsForAStreamThatPassesOnePointAfterTheOther) {
  for (int copy = 0; copy < 10; ++copy) {
    const auto one = point();
    ASSERT_FALSE(query_for(one, deadline / 2).value());
    run(2);
    ASSERT_TRUE(query_for(one, 2 * step).value());
  }
  EXPECT_FALSE(progress_->hangs());
}

TEST_F(PacedProgress, DoesNotCountTimeInWhichItWasNotAsked) {
  const auto one = point();
  ASSERT_FALSE(query_for(one, step).value());
  clock_.advance_to(clock_.now() + deadline * 10);  // a stopped process

  EXPECT_FALSE(query_for(one, deadline / 2).value());
}

TEST_F(StreamProgressTest, FollowsAPointThatIsMoved) {
  auto first = point();
  StreamProgress::Point moved = std::move(first);
  const auto second = point();
  run(2 * 2);

  EXPECT_TRUE(has_passed(moved));
  EXPECT_TRUE(has_passed(second));
}

}  // namespace
}  // namespace penstock::tiers
