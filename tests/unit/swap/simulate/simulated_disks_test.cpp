#include "swap/simulate/simulated_disks.hpp"

#include <gtest/gtest.h>
#include <array>
#include <limits>

namespace penstock::swap {
namespace {

using tiers::TensorId;

constexpr TensorId a{1}, b{2}, c{3};
constexpr double for_ever = std::numeric_limits<double>::infinity();
constexpr std::array one = {DiskRates{.read = 4096, .write = 2048, .mixed = 2048}};

TEST(SimulatedDisks, MovesEachKindAtItsRate) {
  SimulatedDisks disk(one);
  disk.begin({a, 0, true}, 4_KiB);
  disk.begin({b, 0, true}, 4_KiB);
  EXPECT_TRUE(disk.loads(b));
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_DOUBLE_EQ(disk.now(), 1);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_DOUBLE_EQ(disk.now(), 2);
  disk.begin({a, 0, false}, 4_KiB);
  EXPECT_FALSE(disk.run(for_ever).ended->is_load);
  EXPECT_DOUBLE_EQ(disk.now(), 4);
  EXPECT_TRUE(disk.is_idle());
}

// Both at 1024 bytes a second until the store ends, then the load alone at 4096.
TEST(SimulatedDisks, MovesBothKindsAtTheMixedRate) {
  SimulatedDisks disk(one);
  disk.begin({a, 0, true}, 4_KiB);
  disk.begin({b, 0, false}, 2_KiB);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_DOUBLE_EQ(disk.now(), 2);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_DOUBLE_EQ(disk.now(), 2.5);
}

// What has begun ends first.
TEST(SimulatedDisks, MoveUrgentOnesFirst) {
  constexpr TensorId d{4};
  SimulatedDisks disk(one);
  disk.begin({a, 0, true}, 4_KiB);
  disk.begin({b, 0, true}, 4_KiB);
  disk.begin({c, 0, true, /*urgent=*/true}, 4_KiB);
  disk.begin({d, 0, true}, 4_KiB);
  disk.hasten(d);
  disk.hasten(a);
  for (const TensorId next : {a, c, d, b}) EXPECT_EQ(disk.run(for_ever).ended->tensor, next);
  EXPECT_DOUBLE_EQ(disk.now(), 4);
}

TEST(SimulatedDisks, StopsWhereTheTimeIsOver) {
  SimulatedDisks disk(one);
  EXPECT_FALSE(disk.run(3).ended);
  disk.begin({a, 0, true}, 4_KiB);
  EXPECT_FALSE(disk.run(0.75).ended);
  EXPECT_TRUE(disk.run(0.25).ended);
  EXPECT_DOUBLE_EQ(disk.now(), 4);
  EXPECT_DOUBLE_EQ(disk.uses()[0].busy, 1);
  EXPECT_EQ(disk.uses()[0].read, 4_KiB);
}

// The second disk is half as fast: its load takes as long as both of the first.
TEST(SimulatedDisks, WorkAtTheSameTime) {
  const std::array two = {one[0], scaled(one[0], 0.5)};
  SimulatedDisks disks(two);
  disks.begin({a, 0, true}, 4_KiB);
  disks.begin({b, 1, true}, 4_KiB);
  disks.begin({c, 0, false}, 4_KiB);
  EXPECT_EQ(disks.run(for_ever).ended->tensor, b);  // after 2 s, before both of disk 0 have ended, after 4
  EXPECT_DOUBLE_EQ(disks.now(), 2);
  EXPECT_TRUE(disks.loads(a));
  EXPECT_FALSE(disks.loads(b));
  const auto ended = disks.run(for_ever).ended;
  EXPECT_EQ(std::pair(ended->tensor, ended->disk), std::pair(a, 0u));
  EXPECT_EQ(disks.run(for_ever).ended->tensor, c);
  EXPECT_DOUBLE_EQ(disks.now(), 4);
  EXPECT_TRUE(disks.is_idle());
  EXPECT_EQ(disks.uses()[0].written, 4_KiB);
  EXPECT_EQ(disks.uses()[1].read, 4_KiB);
  EXPECT_DOUBLE_EQ(disks.uses()[0].busy, 4);
  EXPECT_DOUBLE_EQ(disks.uses()[1].busy, 2);
}

TEST(SimulatedDisks, TakesNoTimeWithoutRates) {
  SimulatedDisks disk({});
  disk.begin({a, 0, false}, 4_KiB);
  disk.begin({b, 0, true}, 4_KiB);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_EQ(disk.now(), 0);
}

}  // namespace
}  // namespace penstock::swap
