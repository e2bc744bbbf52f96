#include <penstock/tiers/io/file_counters.hpp>

#include <gtest/gtest.h>
#include <chrono>

namespace penstock::tiers {
namespace {

using std::chrono::microseconds;

TEST(LatencyHistogram, NamesABoundThatIsAtMostAQuarterOctaveTooHigh) {
  for (const std::int64_t us : {1, 2, 7, 100, 12'345, 60'000'000}) {
    LatencyHistogram histogram;
    histogram.record(microseconds(us));
    const double bound = static_cast<double>(histogram.percentile(0.5).count()) * 1e-3;
    EXPECT_GE(bound, static_cast<double>(us));
    EXPECT_LE(bound, static_cast<double>(us) * 1.2);
  }
}

TEST(LatencyHistogram, FindsThePercentilesOfMany) {
  LatencyHistogram histogram;
  for (int i = 0; i < 98; ++i) histogram.record(microseconds(100));
  histogram.record(microseconds(1'000));
  histogram.record(microseconds(10'000));

  EXPECT_EQ(histogram.count(), 100u);
  EXPECT_LT(histogram.percentile(0.98), microseconds(120));
  EXPECT_GE(histogram.percentile(0.99), microseconds(1'000));
  EXPECT_LT(histogram.percentile(0.99), microseconds(1'200));
  EXPECT_GE(histogram.percentile(1), microseconds(10'000));
}

TEST(LatencyHistogram, CountsWhatIsOutOfItsRangeInItsEnds) {
  LatencyHistogram histogram;
  histogram.record(TimePoint(-5));
  histogram.record(std::chrono::hours(1));

  EXPECT_EQ(histogram.count(), 2u);
  EXPECT_LE(histogram.percentile(0.5), microseconds(2));
  EXPECT_GE(histogram.percentile(1), std::chrono::seconds(60));
}

TEST(LatencyHistogram, AddsAndTakesAwayWhatWasBefore) {
  LatencyHistogram before;
  before.record(microseconds(10));
  LatencyHistogram after = before;
  after.record(microseconds(500));
  after += before;

  after -= before;
  after -= before;

  EXPECT_EQ(after.count(), 1u);
  EXPECT_GE(after.percentile(0), microseconds(500));
  EXPECT_EQ(LatencyHistogram().percentile(0.5), TimePoint::zero());
}

}  // namespace
}  // namespace penstock::tiers
