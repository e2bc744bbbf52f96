#include "zero/engine/wear_limit.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

swap::PathReport drive(const char* directory, ByteCount endurance, ByteCount written, double weight = 1) {
  swap::PathReport report{.directory = directory, .weight = weight, .endurance = endurance};
  report.counters.bytes_written = written;
  return report;
}

using enum WearLimit::Refuses;

TEST(WearLimit, RefusesAStepThatWouldWriteMoreThanTheCap) {
  PenstockConfig config;
  config.endurance_cap = 0.5;
  WearLimit wear(config);

  // Of 100 bytes 50 may be written; an update of 10 bytes comes before the next step.
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(20))}, ByteCount(10)).refuses, nothing);
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(30))}, ByteCount(10)).refuses, nothing);
  const auto next = wear.end_step({drive("/a", ByteCount(100), ByteCount(31))}, ByteCount(10));
  EXPECT_EQ(next.refuses, next_step);
  EXPECT_EQ(next.reason,
            "/a: it would write 10 B beside the 41 B that were written before it, this rank's part of the "
            "endurance "
            "is 100 B, and penstock.endurance_cap is 50 %");
}

TEST(WearLimit, RefusesTheFirstStepWhereTheFirstValuesHaveUsedTheCapUp) {
  PenstockConfig config;
  config.endurance_cap = 0.5;

  EXPECT_EQ(WearLimit(config).end_step({drive("/a", ByteCount(100), ByteCount(40))}, ByteCount(10)).refuses,
            next_step);
  const auto refused =
      WearLimit(config).end_step({drive("/a", ByteCount(100), ByteCount(41))}, ByteCount(10));
  EXPECT_EQ(refused.refuses, this_step);
  EXPECT_EQ(refused.reason.find("/a: it would write 10 B beside the 41 B"), 0u) << refused.reason;
}

TEST(WearLimit, TakesNoStepForMoreWhereFewerBytesAreCountedThanBefore) {
  PenstockConfig config;
  config.endurance_cap = 1;
  WearLimit wear(config);
  const auto end_step = [&](std::uint64_t written) {
    return wear.end_step({drive("/a", ByteCount(1000), ByteCount(written))}, ByteCount(10)).refuses;
  };

  EXPECT_EQ(end_step(120), nothing);  // some of it twice
  EXPECT_EQ(end_step(110), nothing);
  EXPECT_EQ(end_step(130), nothing);
}

TEST(WearLimit, TakesNoStepForWhatACommitHasWritten) {
  PenstockConfig config;
  config.endurance_cap = 1;
  WearLimit wear(config);
  const auto end_step = [&](std::uint64_t written) {
    return wear.end_step({drive("/a", ByteCount(100), ByteCount(written))}, ByteCount(10)).refuses;
  };

  EXPECT_EQ(end_step(10), nothing);
  wear.note_other_writes();
  EXPECT_EQ(end_step(60), nothing);
  EXPECT_EQ(end_step(70), nothing);
}

TEST(WearLimit, NamesTheDriveThatAllowsLeast) {
  PenstockConfig config;
  config.endurance_cap = 1;

  const auto refused = WearLimit(config).end_step(
      {drive("/a", ByteCount(100), ByteCount(85)), drive("/b", ByteCount(100), ByteCount(95)),
       drive("/c", ByteCount(100), ByteCount(10))},
      ByteCount(30));

  EXPECT_EQ(refused.refuses, this_step);
  EXPECT_EQ(refused.reason.find("/b"), 0u) << refused.reason;
}

TEST(WearLimit, CountsWhatTheLastStepHasWrittenWhereThatIsMoreThanPlanned) {
  PenstockConfig config;
  config.endurance_cap = 1;
  WearLimit wear(config);

  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(20))}, ByteCount(10)).refuses, nothing);
  EXPECT_EQ(wear.end_step({drive("/a", ByteCount(100), ByteCount(45))}, ByteCount(10)).refuses, nothing);
  EXPECT_NE(wear.end_step({drive("/a", ByteCount(100), ByteCount(71))}, ByteCount(10)).refuses, nothing);
}

TEST(WearLimit, DividesWhatIsPlannedBetweenDrivesByWeight) {
  PenstockConfig config;
  config.endurance_cap = 1;

  const auto end_step = [&](double weight) {
    WearLimit wear(config);
    return wear
        .end_step({drive("/a", {}, ByteCount(50)), drive("/b", ByteCount(100), ByteCount(50), weight)},
                  ByteCount(40))
        .refuses;
  };

  EXPECT_EQ(end_step(1), nothing);    // 20 bytes of a step, twice
  EXPECT_EQ(end_step(2), next_step);  // 27
}

TEST(WearLimit, IsNoneWithoutACapOrAnEndurance) {
  PenstockConfig config;
  const swap::PathReport worn = drive("/a", ByteCount(100), ByteCount(200));
  EXPECT_EQ(WearLimit(config).end_step({worn}, ByteCount(10)).refuses, nothing);
  config.endurance_cap = 0;
  EXPECT_EQ(WearLimit(config).end_step({drive("/a", {}, ByteCount(200))}, ByteCount(10)).refuses, nothing);
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
            "/a: this rank has written 50 % of the 100 B that it may write to the drive "
            "(penstock.path_endurance)");
  EXPECT_TRUE(warnings(ByteCount(60), ByteCount(49)).empty());
  EXPECT_EQ(warnings(ByteCount(99), ByteCount(3000)).size(), 1u);
  const auto last = warnings(ByteCount(100), ByteCount(4000));  // of /b one has said that it is at its end
  ASSERT_EQ(last.size(), 1u);
  EXPECT_NE(last[0].find("/a: this rank has written 100 % of"), std::string::npos) << last[0];
  EXPECT_TRUE(warnings(ByteCount(500), ByteCount(5000)).empty());
}

}  // namespace
}  // namespace penstock::zero
