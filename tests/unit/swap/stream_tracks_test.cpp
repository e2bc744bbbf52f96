#include "swap/stream_tracks.hpp"

#include "kit/manual_stream_clock.hpp"
#include "kit/scratch_directory.hpp"
#include "unit/swap/timeline_rows.hpp"

#include <gtest/gtest.h>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::swap {
namespace {

using test::ManualStreamClock;
using test::rows_of;
using test::TimelineEvent;

class StreamTracksTest : public testing::Test {
 protected:
  StreamHandle copies() { return StreamHandle::from_native(&copies_); }
  StreamHandle compute() { return StreamHandle::from_native(&compute_); }
  /// What is in the timeline's rows.
  std::map<std::string, std::vector<TimelineEvent>> written() {
    tracks_.reset();
    timeline_.reset();
    return rows_of(file_);
  }

  const test::ScratchDirectory scratch_;
  const std::filesystem::path file_ = scratch_.path() / "timeline.json";
  std::unique_ptr<Timeline> timeline_ = Timeline::create(file_).value();
  ManualStreamClock* clock_ = new ManualStreamClock;
  std::optional<StreamTracks> tracks_{std::in_place, *timeline_, std::unique_ptr<tiers::StreamClock>(clock_),
                                      "others"};

 private:
  int copies_ = 0, compute_ = 0;
};

TEST_F(StreamTracksTest, HaveTheTimesOfTheDevice) {
  tracks_->name(copies(), "copies");
  for (int i = 0; i < 2; ++i) {
    tracks_->begin(copies(), "copy");
    tracks_->end(copies(), "copy", 7_B);
  }
  clock_->pass(4);

  const auto rows = written();

  ASSERT_EQ(rows.size(), 1u);
  const auto& copied = rows.at("copies");
  ASSERT_EQ(copied.size(), 2u);
  EXPECT_EQ(copied[0].name, "copy");
  EXPECT_NEAR(copied[0].begin, 0.0, 1e-6);
  EXPECT_NEAR(copied[0].end, 0.1, 1e-6);
  EXPECT_NEAR(copied[1].begin, 0.2, 1e-6);
  EXPECT_NEAR(copied[1].end, 0.3, 1e-6);
}

TEST_F(StreamTracksTest, HaveWhatBeginsWithinSomethingElse) {
  tracks_->begin(compute(), "outer");  // 0
  tracks_->begin(compute(), "inner");  // 1
  tracks_->begin(compute(), "inner");  // 2
  tracks_->end(compute(), "inner");    // 3, of 2
  tracks_->end(compute(), "outer");    // 4
  tracks_->end(compute(), "inner");    // 5, of 1
  clock_->pass(6);

  const auto rows = written();

  // In the order in which they end; a row holds what does not overlap.
  const auto& first = rows.at("others");
  ASSERT_EQ(first.size(), 1u);
  EXPECT_NEAR(first[0].begin, 0.2, 1e-6);
  const auto& second = rows.at("others 2");
  ASSERT_EQ(second.size(), 1u);
  EXPECT_EQ(second[0].name, "outer");
  const auto& third = rows.at("others 3");
  ASSERT_EQ(third.size(), 1u);
  EXPECT_NEAR(third[0].begin, 0.1, 1e-6);
  EXPECT_NEAR(third[0].end, 0.5, 1e-6);
}

TEST_F(StreamTracksTest, LackWhatAStreamHasNotPassedAndWhatDidNotBegin) {
  tracks_->end(compute(), "never begun");  // 0
  tracks_->begin(copies(), "passed");      // 1
  tracks_->begin(compute(), "not ended");  // 2
  tracks_->end(copies(), "passed");        // 3
  tracks_->begin(copies(), "waits");       // 4
  tracks_->end(copies(), "waits");         // 5
  clock_->pass(5);

  const auto rows = written();

  ASSERT_EQ(rows.size(), 1u);
  ASSERT_EQ(rows.at("others").size(), 1u);
  EXPECT_EQ(rows.at("others")[0].name, "passed");
}

TEST_F(StreamTracksTest, HaveWhatEndsOnAnotherStreamThere) {
  tracks_->name(copies(), "copies");
  tracks_->begin(copies(), "unit");  // 0
  tracks_->begin(copies(), "open");  // 1
  tracks_->end(compute(), "unit");   // 2
  clock_->pass(3);
  tracks_->write();  // both streams are past their marks

  const auto rows = written();

  ASSERT_EQ(rows.size(), 1u);
  EXPECT_EQ(rows.at("others")[0].name, "unit");
  EXPECT_NEAR(rows.at("others")[0].begin, 0.0, 1e-6);
  EXPECT_NEAR(rows.at("others")[0].end, 0.2, 1e-6);
}

TEST_F(StreamTracksTest, LeaveOutWhatHasNotEndedWithItsRound) {
  tracks_->begin(compute(), "unit");
  clock_->pass(1);
  tracks_->end_round();
  tracks_->end(compute(), "unit");
  clock_->pass(2);

  EXPECT_TRUE(written().empty());
}

TEST_F(StreamTracksTest, UseMarksAgain) {
  for (std::uint32_t i = 1; i <= 100; ++i) {
    tracks_->begin(copies(), "copy");
    clock_->pass(2 * i);
    tracks_->end(copies(), "copy");
  }
  EXPECT_EQ(clock_->numbers(), 2u);
  tracks_->write();
  EXPECT_EQ(written().at("others").size(), 100u);
}

TEST_F(StreamTracksTest, EndWithTheDevice) {
  tracks_->begin(copies(), "before");
  tracks_->end(copies(), "before");
  clock_->pass(2);
  tracks_->write();
  tracks_->begin(copies(), "lost");
  tracks_->end(copies(), "lost");
  clock_->fail();
  tracks_->begin(copies(), "after");
  tracks_->end(copies(), "after");

  const std::string message = timeline_->take_message();
  EXPECT_NE(message.find("lacks what streams do from here on, because their clock has failed"),
            std::string::npos);
  EXPECT_NE(message.find("ManualStreamClock"), std::string::npos) << message;
  EXPECT_EQ(timeline_->take_message(), "") << "once";

  const auto rows = written();

  ASSERT_EQ(rows.at("others").size(), 1u);
  EXPECT_EQ(rows.at("others")[0].name, "before");
}

TEST_F(StreamTracksTest, MarkNothingOnceTheTimelineHasEnded) {
  timeline_->add("waits", "loads", {});
  EXPECT_EQ(timeline_->end(), "");
  tracks_->begin(copies(), "after");
  tracks_->end(copies(), "after");
  EXPECT_EQ(clock_->numbers(), 0u);
}

}  // namespace
}  // namespace penstock::swap
