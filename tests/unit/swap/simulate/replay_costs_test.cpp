#include "kit/seeded_random.hpp"
#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <limits>
#include <string>

namespace penstock::swap {
namespace {

constexpr ByteCount page = 4_KiB;

/// A page is read in 1 s, written in 2 s, and used in `use_seconds`.
ReplayCosts costs_of(double use_seconds) {
  ReplayCosts costs{.disks = {{.rates = {.read = 4096, .write = 2048, .mixed = 2048}}}};
  costs.use.fill(use_seconds == 0 ? 0 : 4096 / use_seconds);
  return costs;
}
AccessTrace sweep(std::uint32_t tensors, Access access) {
  AccessTrace trace;
  for (std::uint32_t i = 0; i < tensors; ++i) {
    trace.tensors.push_back({.name = "tensor " + std::to_string(i), .size = page});
    trace.uses.push_back({i, access});
  }
  return trace;
}

// docs/simulation.md counts these seconds by hand.
TEST(ReplayCosts, CountTheSecondsThatAHandCounts) {
  const AccessTrace trace = sweep(2, Access::modify);
  const auto replay = Replay::create(trace, {.host_budget = page, .costs = costs_of(0.5)}).value();
  const ReplayedRound first = replay->round().value();
  EXPECT_DOUBLE_EQ(first.waited_for_loads, 2);
  EXPECT_DOUBLE_EQ(first.waited_for_room, 2);  // tensor 0 is written before tensor 1 is read
  EXPECT_DOUBLE_EQ(first.used, 1);
  EXPECT_DOUBLE_EQ(first.seconds, 5);
  const ReplayedRound steady = replay->round().value();
  EXPECT_DOUBLE_EQ(steady.waited_for_loads, 2);
  EXPECT_DOUBLE_EQ(steady.waited_for_room, 4);
  EXPECT_DOUBLE_EQ(steady.seconds, 7);
  EXPECT_DOUBLE_EQ(steady.disks[0].busy, 6);
}

TEST(ReplayCosts, HideWhatIsReadAheadBehindUses) {
  const AccessTrace trace = sweep(4, Access::read);
  const auto seconds = [&](ByteCount lookahead, double use_seconds) {
    const auto replay = Replay::create(trace, {.host_budget = page * 2,
                                               .eviction = Eviction::lru,
                                               .lookahead = lookahead,
                                               .costs = costs_of(use_seconds)})
                            .value();
    (void)replay->round();
    return replay->round().value().seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0_B, 2), 12);
  EXPECT_DOUBLE_EQ(seconds(page, 2), 8);    // uses take longer than reading
  EXPECT_DOUBLE_EQ(seconds(page, 0.5), 4);  // reading takes longer
}

TEST(ReplayCosts, HideTensorsThatAreDroppedIfTheyAreAskedFor) {
  AccessTrace trace = sweep(4, Access::read);
  for (auto& tensor : trace.tensors) tensor.retain = false;
  const auto seconds = [&](std::uint32_t dropped_ahead) {
    const auto replay = Replay::create(trace, {.host_budget = page * 2,
                                               .lookahead = page,
                                               .costs = costs_of(2),
                                               .dropped_ahead = dropped_ahead})
                            .value();
    return replay->round().value().seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(0), 12);
  EXPECT_DOUBLE_EQ(seconds(1), 9);  // only the first one is waited for
}

// What is left of a use is then less than the clock can add.
TEST(ReplayCosts, EndHoweverLongTheyAre) {
  const AccessTrace trace = sweep(5, Access::modify);
  const auto replay = Replay::create(trace, {.host_budget = page * 3, .costs = costs_of(1e9 / 3)}).value();
  for (int round = 0; round < 4; ++round) EXPECT_NEAR(replay->round().value().used, 5e9 / 3, 1);
}

TEST(ReplayCosts, AreTheSumOfUsesAndWaits) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    test::SeededRandom random(seed);
    AccessTrace trace;
    for (std::uint64_t i = 3 + random.below(8); i > 0; --i) {
      trace.tensors.push_back({.name = "tensor " + std::to_string(i),
                               .size = page * (1 + random.below(3)),
                               .write_behind = random.below(2) == 0});
    }
    for (int i = 0; i < 40; ++i) {
      trace.uses.push_back({static_cast<std::uint32_t>(random.below(trace.tensors.size())),
                            static_cast<Access>(random.below(3))});
    }
    const auto replay =
        Replay::create(trace, {.host_budget = page * (6 + random.below(8)),
                               .eviction = random.below(2) == 0 ? Eviction::planned : Eviction::lru,
                               .lookahead = page * random.below(4),
                               .costs = costs_of(static_cast<double>(random.below(4)))})
            .value();
    for (int round = 0; round < 3; ++round) {
      const ReplayedRound result = replay->round().value();
      EXPECT_NEAR(result.seconds, result.used + result.waited_for_loads + result.waited_for_room, 1e-6);
      EXPECT_LE(result.disks[0].busy, result.seconds + 1e-6);
    }
  }
}

// Four tensors are read, the first one before any is read ahead.
TEST(ReplayCosts, AreThoseOfTheDiskOnWhichATensorIs) {
  const AccessTrace trace = sweep(4, Access::read);
  const auto read = [&](std::vector<ReplayCosts::Disk> disks) {
    ReplayCosts costs = costs_of(0);
    costs.disks = std::move(disks);
    const auto replay =
        Replay::create(trace, {.host_budget = page * 8, .lookahead = page * 8, .costs = costs}).value();
    return replay->round().value();
  };
  const DiskRates fast{.read = 4096, .write = 2048, .mixed = 2048}, slow = scaled(fast, 0.5);
  EXPECT_DOUBLE_EQ(read({{.rates = fast}}).seconds, 4);
  EXPECT_DOUBLE_EQ(read({{.rates = fast}, {.rates = fast}}).seconds, 3);  // then 1 and 3 on one, 2
  const ReplayedRound weighted = read({{.rates = fast, .weight = 3}, {.rates = slow, .weight = 1}});
  EXPECT_DOUBLE_EQ(weighted.seconds, 3);
  EXPECT_EQ(weighted.disks[0].read, page * 3);
  EXPECT_EQ(weighted.disks[1].read, page);
  EXPECT_DOUBLE_EQ(weighted.disks[1].busy, 2);
  EXPECT_DOUBLE_EQ(read({{.rates = fast}, {.rates = slow}}).seconds, 5);  // then 1 and 3 on the slow one
}

// What `planned` does not keep of a sweep lies on the disks by their weights: none waits for the other.
TEST(ReplayCosts, OfASweepAreSharedByTheDisksAsTheirWeightsAre) {
  for (const std::uint32_t kept : {10u, 50u, 90u}) {
    for (const double weight : {1.0, 2.0, 3.0}) {
      SCOPED_TRACE(std::to_string(kept) + " of 120 in memory, weight " + std::to_string(weight));
      const AccessTrace trace = sweep(120, Access::modify);
      ReplayCosts costs = costs_of(0);
      costs.disks.push_back({.rates = scaled(costs.disks[0].rates, weight), .weight = weight});
      const auto replay =
          Replay::create(trace, {.host_budget = page * kept, .lookahead = page * 8, .costs = costs}).value();
      (void)replay->round();
      const ReplayedRound steady = replay->round().value();
      const auto moved = [&](std::size_t disk) {
        return static_cast<double>((steady.disks[disk].read + steady.disks[disk].written).value());
      };
      const double all = moved(0) + moved(1), pages = 4.0 * static_cast<double>(page.value());
      EXPECT_NEAR(moved(1), all * weight / (1 + weight), pages);
    }
  }
}

TEST(ReplayCosts, AreAboveZero) {
  const AccessTrace trace = sweep(2, Access::read);
  for (const double wrong :
       {0.0, -1.0, std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
    for (double DiskRates::*rate : {&DiskRates::read, &DiskRates::write, &DiskRates::mixed}) {
      ReplayCosts costs = costs_of(1);
      costs.disks[0].rates.*rate = wrong;
      const auto refused = Replay::create(trace, {.host_budget = page, .costs = costs});
      ASSERT_FALSE(refused);
      EXPECT_NE(refused.error().message().find("disks[0]."), std::string::npos) << refused.error().message();
    }
  }
  ReplayCosts costs = costs_of(1);
  costs.disks[0].weight = 0;
  EXPECT_EQ(Replay::create(trace, {.host_budget = page, .costs = costs}).error().code(),
            ErrorCode::invalid_argument);
  costs.disks.clear();
  EXPECT_EQ(Replay::create(trace, {.host_budget = page, .costs = costs}).error().code(),
            ErrorCode::invalid_argument);
  costs = costs_of(1);
  costs.use[0] = -1;
  EXPECT_EQ(Replay::create(trace, {.host_budget = page, .costs = costs}).error().code(),
            ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::swap
