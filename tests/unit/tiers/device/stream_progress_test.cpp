#include "tiers/device/stream_progress.hpp"

#include "kit/counting_device.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::tiers {
namespace {

class StreamProgressTest : public testing::Test {
 protected:
  /// A point after one more operation.
  StreamProgress::Point point() {
    stream_->handle().host_queue()->enqueue([] {});
    return progress_.record(*stream_, pool_).value();
  }
  bool has_passed(const StreamProgress::Point& point) { return progress_.has_passed(point).value(); }
  void run(int operations) {
    for (int i = 0; i < operations; ++i) ASSERT_TRUE(host_->run_one());
  }
  std::uint64_t queries() const { return device_.calls().queries; }

  HostDevice* const host_ =
      new HostDevice({.memory = 1_MiB, .mode = HostDevice::Mode::deferred});  // of device_
  test::CountingDevice device_{std::unique_ptr<Device>(host_)};
  std::unique_ptr<Stream> stream_ = device_.create_stream().value();
  EventPool pool_{device_};
  StreamProgress progress_;
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
