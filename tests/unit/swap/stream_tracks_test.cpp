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

  const auto rows = written();

  ASSERT_EQ(rows.at("others").size(), 1u);
  EXPECT_EQ(rows.at("others")[0].name, "before");
}

}  // namespace
}  // namespace penstock::swap
