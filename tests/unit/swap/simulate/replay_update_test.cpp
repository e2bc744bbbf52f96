#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::swap {
namespace {

using tiers::Purpose;

constexpr ByteCount page = 4_KiB;

/// The step of an engine with two units, a page of each: forward, backward, update. Only the tiles are on disk.
AccessTrace step_of_two_units() {
  AccessTrace trace;
  for (const auto& [purpose, on_disk] :
       {std::pair(Purpose::parameter_shard, false), std::pair(Purpose::gradient_shard, false),
        std::pair(Purpose::optimizer_tile, true)}) {
    for (int unit = 0; unit < 2; ++unit) {
      trace.tensors.push_back({.name = std::to_string(trace.tensors.size()),
                               .size = page,
                               .purpose = purpose,
                               .on_disk = on_disk,
                               .write_behind = on_disk,
                               .retain = !on_disk});
    }
  }
  trace.uses = {{0, Access::read},   {1, Access::read},      {1, Access::read},      {3, Access::overwrite},
                {0, Access::read},   {2, Access::overwrite}, {2, Access::read},      {0, Access::overwrite},
                {4, Access::modify}, {3, Access::read},      {1, Access::overwrite}, {5, Access::modify}};
  return trace;
}

/// A tile is read in 1 s, updated in 0.5 s and written in 2 s; there is memory for one.
ReplayedRound steady_round(double shard_seconds, bool shared_processor, bool update_beside = true) {
  const AccessTrace trace = step_of_two_units();
  ReplayCosts costs{.disks = {{.rates = {.read = 4096, .write = 2048, .mixed = 2048}}},
                    .shared_processor = shared_processor};
  costs.use[static_cast<std::size_t>(Purpose::parameter_shard)] = 4096 / shard_seconds;
  costs.use[static_cast<std::size_t>(Purpose::optimizer_tile)] = 4096 / 0.5;
  const auto replay =
      Replay::create(trace, {.host_budget = page * 5, .costs = costs, .update_beside = update_beside})
          .value();
  const ReplayedRound first = replay->round().value();
  EXPECT_EQ(first.waited_for_update, 0);
  (void)replay->round();
  return replay->round().value();
}

// docs/simulation.md counts these seconds by hand.
TEST(ReplayUpdate, RunsBesideTheForwardOfTheNextRound) {
  const ReplayedRound round = steady_round(1, false);
  EXPECT_DOUBLE_EQ(round.update, 5);
  EXPECT_DOUBLE_EQ(round.used, 4);
  EXPECT_DOUBLE_EQ(round.waited_for_update, 4);
  EXPECT_DOUBLE_EQ(round.seconds, 8);
  EXPECT_EQ(round.written, page * 2);
}

TEST(ReplayUpdate, IsHiddenByAForwardThatTakesLonger) {
  const ReplayedRound round = steady_round(4, false);
  EXPECT_DOUBLE_EQ(round.waited_for_update, 1.5);  // for the first unit
  EXPECT_DOUBLE_EQ(round.seconds, 17.5);
}

TEST(ReplayUpdate, SharesTheProcessorWithTheTrainer) {
  const ReplayedRound round = steady_round(4, true);
  EXPECT_DOUBLE_EQ(round.seconds, 18);  // the second tile is updated during the first unit's forward
  EXPECT_DOUBLE_EQ(round.update, 5.5);
}

TEST(ReplayUpdate, IsPartOfTheRoundUnlessItRunsBeside) {
  const ReplayedRound round = steady_round(1, false, /*update_beside=*/false);
  EXPECT_EQ(round.update, 0);
  EXPECT_DOUBLE_EQ(round.waited_for_update, 0);
  EXPECT_NEAR(round.seconds, round.used + round.waited_for_loads + round.waited_for_room, 1e-9);
}

TEST(ReplayUpdate, MovesTheSameBytesAsTheRoundsOfOneThread) {
  const AccessTrace trace = step_of_two_units();
  for (const bool beside : {false, true}) {
    const auto replay = Replay::create(trace, {.host_budget = page * 5, .update_beside = beside}).value();
    ByteCount read;
    for (int round = 0; round < 4; ++round) read += replay->round().value().read;
    EXPECT_EQ(read, page * (beside ? 6 : 8));  // the last update belongs to the next round
  }
}

}  // namespace
}  // namespace penstock::swap
