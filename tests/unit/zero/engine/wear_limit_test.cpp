#include "zero/engine/wear_limit.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

swap::PathReport drive(const char* directory, ByteCount endurance, ByteCount written, double weight = 1) {
  swap::PathReport report{.directory = directory, .weight = weight, .endurance = endurance};
  report.counters.bytes_written = written;
  return report;
}

TEST(WearLimit, RefusesAStepThatWouldWriteMoreThanTheCap) {
  PenstockConfig config;
  config.endurance_cap = 0.5;
  WearLimit wear(config);

  // Of 100 bytes 50 may be written; an update of 10 bytes comes before the next step.
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(20))}, ByteCount(10)), std::nullopt);
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(30))}, ByteCount(10)), std::nullopt);
  const auto refused = wear.end_step({drive("/a", ByteCount(100), ByteCount(31))}, ByteCount(10));
  ASSERT_TRUE(refused);
  EXPECT_EQ(*refused,
            "/a: 31 B written of the 100 B that this rank may write, and penstock.endurance_cap is 50 %");
}

TEST(WearLimit, CountsWhatTheLastStepHasWrittenWhereThatIsMoreThanPlanned) {
  PenstockConfig config;
  config.endurance_cap = 1;
  WearLimit wear(config);

  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(20))}, ByteCount(10)), std::nullopt);
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(45))}, ByteCount(10)), std::nullopt);
  EXPECT_NE(wear.end_step({drive("/a", ByteCount(100), ByteCount(71))}, ByteCount(10)), std::nullopt);
}

TEST(WearLimit, DividesWhatIsPlannedBetweenDrivesByWeight) {
  PenstockConfig config;
  config.endurance_cap = 1;

  const auto end_step = [&](double weight) {
    WearLimit wear(config);
    return wear.end_step({drive("/a", {}, ByteCount(50)), drive("/b", ByteCount(100), ByteCount(50), weight)},
                         ByteCount(40));
  };

  EXPECT_EQ(end_step(1), std::nullopt);  // 20 bytes of a step, twice
  EXPECT_NE(end_step(2), std::nullopt);  // 27
}

TEST(WearLimit, IsNoneWithoutACapOrAnEndurance) {
  PenstockConfig config;
  const swap::PathReport worn = drive("/a", ByteCount(100), ByteCount(200));
  EXPECT_EQ(WearLimit(config).end_step({worn}, ByteCount(10)), std::nullopt);
  config.endurance_cap = 0;
  EXPECT_EQ(WearLimit(config).end_step({drive("/a", {}, ByteCount(200))}, ByteCount(10)), std::nullopt);
}

TEST(WearLimit, WarnsOnceOfEachDrive) {
  PenstockConfig config;
  config.endurance_warning = 0.5;
  WearLimit wear(config);
  const auto warnings = [&](ByteCount a, ByteCount b) {
    return wear.take_warnings({drive("/a", ByteCount(100), a), drive("/b", ByteCount(100), b)});
  };

  EXPECT_TRUE(warnings(ByteCount(49), ByteCount(0)).empty());
  const auto first = warnings(ByteCount(50), ByteCount(0));
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0],
            "/a: 50 % of the 100 B that this rank may write to the drive (penstock.path_endurance)");
  EXPECT_TRUE(warnings(ByteCount(60), ByteCount(49)).empty());
  EXPECT_EQ(warnings(ByteCount(60), ByteCount(70)).size(), 1u);
}

}  // namespace
}  // namespace penstock::zero
