#include "swap/simulate/simulated_disk.hpp"

#include <gtest/gtest.h>
#include <limits>

namespace penstock::swap {
namespace {

using tiers::TensorId;

constexpr TensorId a{1}, b{2};
constexpr double for_ever = std::numeric_limits<double>::infinity();
constexpr DiskRates rates{.read = 4096, .write = 2048, .mixed = 2048};

TEST(SimulatedDisk, MovesEachKindAtItsRate) {
  SimulatedDisk disk(rates);
  disk.begin({a, true}, 4_KiB);
  disk.begin({b, true}, 4_KiB);
  EXPECT_TRUE(disk.loads(b));
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_DOUBLE_EQ(disk.now(), 1);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_DOUBLE_EQ(disk.now(), 2);
  disk.begin({a, false}, 4_KiB);
  EXPECT_FALSE(disk.run(for_ever).ended->is_load);
  EXPECT_DOUBLE_EQ(disk.now(), 4);
  EXPECT_TRUE(disk.is_idle());
}

// Both at 1024 bytes a second until the store ends, then the load alone at 4096.
TEST(SimulatedDisk, MovesBothKindsAtTheMixedRate) {
  SimulatedDisk disk(rates);
  disk.begin({a, true}, 4_KiB);
  disk.begin({b, false}, 2_KiB);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_DOUBLE_EQ(disk.now(), 2);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_DOUBLE_EQ(disk.now(), 2.5);
}

TEST(SimulatedDisk, StopsWhereTheTimeIsOver) {
  SimulatedDisk disk(rates);
  EXPECT_FALSE(disk.run(3).ended);
  disk.begin({a, true}, 4_KiB);
  EXPECT_FALSE(disk.run(0.75).ended);
  EXPECT_TRUE(disk.run(0.25).ended);
  EXPECT_DOUBLE_EQ(disk.now(), 4);
  EXPECT_DOUBLE_EQ(disk.busy(), 1);
}

TEST(SimulatedDisk, TakesNoTimeWithoutRates) {
  SimulatedDisk disk(std::nullopt);
  disk.begin({a, false}, 4_KiB);
  disk.begin({b, true}, 4_KiB);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, a);
  EXPECT_EQ(disk.run(for_ever).ended->tensor, b);
  EXPECT_EQ(disk.now(), 0);
}

}  // namespace
}  // namespace penstock::swap
