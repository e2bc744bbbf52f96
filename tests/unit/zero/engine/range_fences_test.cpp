#include "zero/engine/range_fences.hpp"

#include <penstock/tiers/device/host_device.hpp>

#include <gtest/gtest.h>
#include <memory>
#include <vector>

namespace penstock::zero {
namespace {

using tiers::Fence;

class RangeFencesTest : public testing::Test {
 protected:
  Fence fence() { return events_.record(*stream_).value(); }

  tiers::HostDevice device_{{.memory = 1_MiB, .mode = tiers::HostDevice::Mode::deferred}};
  tiers::EventPool events_{device_};
  RangeFences fences_;
  std::unique_ptr<tiers::Stream> stream_ = device_.create_stream().value();
};

TEST_F(RangeFencesTest, GiveTheNextUserTheFencesOfWhatItOverlapsEachOnce) {
  const Fence a = fence(), b = fence(), c = fence();
  fences_.release(0, 100_B, {a});
  fences_.release(100, 100_B, {b});
  fences_.release(200, 50_B, {b});
  fences_.release(250, 100_B, {c});

  EXPECT_EQ(fences_.take(50, 200_B), (std::vector<Fence>{a, b}));
  EXPECT_TRUE(fences_.take(50, 200_B).empty());  // they are the new user's
  EXPECT_EQ(fences_.take(0, 1_KiB), (std::vector<Fence>{a, c}));
  EXPECT_TRUE(fences_.take(0, 1_KiB).empty());
}

TEST_F(RangeFencesTest, KeepWhatIsBesideATakenRange) {
  const Fence a = fence();
  fences_.release(100, 100_B, {a});

  EXPECT_EQ(fences_.take(120, 10_B), std::vector<Fence>{a});
  EXPECT_EQ(fences_.take(100, 20_B), std::vector<Fence>{a});
  EXPECT_TRUE(fences_.take(120, 10_B).empty());
  EXPECT_EQ(fences_.take(130, 1_KiB), std::vector<Fence>{a});
}

TEST_F(RangeFencesTest, AreReplacedByTheNextRelease) {
  const Fence a = fence(), b = fence();
  fences_.release(0, 100_B, {a});
  fences_.release(0, 100_B, {b});
  EXPECT_EQ(fences_.take(0, 100_B), std::vector<Fence>{b});

  fences_.release(0, 100_B, {a});
  fences_.release(0, 100_B, {nullptr});  // may be written now
  EXPECT_TRUE(fences_.take(0, 100_B).empty());

  fences_.release(0, 100_B, {a});
  fences_.clear();
  EXPECT_TRUE(fences_.take(0, 100_B).empty());
}

}  // namespace
}  // namespace penstock::zero
