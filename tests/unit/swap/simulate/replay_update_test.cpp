#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <string>

namespace penstock::swap {
namespace {

using tiers::Purpose;

constexpr ByteCount page = 4_KiB;

/// The step of an engine with `units` units, a page of each: forward, backward, update. Only the tiles are on disk.
AccessTrace step_of(std::uint32_t units) {
  AccessTrace trace;
  for (const auto& [purpose, on_disk] :
       {std::pair(Purpose::parameter_shard, false), std::pair(Purpose::gradient_shard, false),
        std::pair(Purpose::optimizer_tile, true)}) {
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      trace.tensors.push_back({.name = std::to_string(trace.tensors.size()),
                               .size = page,
                               .purpose = purpose,
                               .on_disk = on_disk,
                               .write_behind = on_disk,
                               .retain = !on_disk});
    }
  }
  for (std::uint32_t unit = 0; unit < units; ++unit) trace.uses.push_back({unit, Access::read});
  for (std::uint32_t unit = units; unit-- > 0;) {
    trace.uses.push_back({unit, Access::read});
    trace.uses.push_back({units + unit, Access::overwrite});
  }
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    trace.uses.push_back({units + unit, Access::read});
    trace.uses.push_back({unit, Access::overwrite});
    trace.uses.push_back({2 * units + unit, Access::modify});
  }
  return trace;
}

/// A tile is read in 1 s, updated in 0.5 s and written in 2 s; there is memory for one.
ReplayedRound steady_round(double shard_seconds, bool shared_processor, bool update_beside = true) {
  const AccessTrace trace = step_of(2);
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
  EXPECT_DOUBLE_EQ(round.update_used, 1);
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
  const AccessTrace trace = step_of(2);
  for (const bool beside : {false, true}) {
    const auto replay = Replay::create(trace, {.host_budget = page * 5, .update_beside = beside}).value();
    ByteCount read;
    for (int round = 0; round < 4; ++round) read += replay->round().value().read;
    EXPECT_EQ(read, page * (beside ? 6 : 8));  // the last update belongs to the next round
  }
}

/// A unit takes 1 s in the forward and 1 s in the backward; a tile is read in 1 s, written beside that in 1 s, and
/// updated in 0.5 s.
ReplayedRound steady_round_of_ten(bool in_backward) {
  const AccessTrace trace = step_of(10);
  ReplayCosts costs{.disks = {{.rates = {.read = 4096, .write = 4096, .mixed = 8192}}}};
  costs.use[static_cast<std::size_t>(Purpose::parameter_shard)] = 4096;
  costs.use[static_cast<std::size_t>(Purpose::optimizer_tile)] = 4096 / 0.5;
  const auto replay = Replay::create(trace, {.host_budget = page * 22,
                                             .costs = costs,
                                             .update_beside = true,
                                             .update_in_backward = in_backward})
                          .value();
  for (int round = 0; round < 5; ++round) (void)replay->round().value();
  return replay->round().value();
}

// The updates of ten units take 15 s. After the step they hide behind the forward alone: the forward of the last unit
// and the backward follow them. In the backward they hide behind both phases, but for the last two: the first unit's
// gradient comes last, while the second unit is being updated.
TEST(ReplayUpdate, HidesBehindBothPhasesInTheBackward) {
  const ReplayedRound after = steady_round_of_ten(false), within = steady_round_of_ten(true);
  EXPECT_NEAR(after.seconds, 15 + 1 + 10, 1e-9);
  EXPECT_NEAR(within.seconds, 20 + 1.5 + 1.5, 1e-9);
  for (const ReplayedRound& round : {after, within}) {
    EXPECT_NEAR(round.update, 15, 1e-9);
    EXPECT_NEAR(round.seconds, round.used + round.waited_for_update, 1e-9);
    EXPECT_EQ(round.read, page * 10);
    EXPECT_EQ(round.written, page * 10);
  }
}

// The disk takes 27 s for the tiles of ten units. Between two updates the trainer computes for a few seconds, in which
// the disk reads ahead.
TEST(ReplayUpdate, ReadsBetweenUpdatesInTheBackward) {
  const AccessTrace trace = step_of(10);
  ReplayCosts costs{.disks = {{.rates = {.read = 3000, .write = 3000, .mixed = 3000}}}};
  costs.use[static_cast<std::size_t>(Purpose::parameter_shard)] = 4096;
  const auto steps = [&](std::uint32_t between) {
    const auto replay = Replay::create(trace, {.host_budget = page * 28,
                                               .costs = costs,
                                               .update_beside = true,
                                               .update_in_backward = true,
                                               .dropped_ahead = 1,
                                               .dropped_between = between})
                            .value();
    ReplayedRound sum;
    for (int round = 0; round < 20; ++round) {
      const ReplayedRound one = replay->round().value();
      sum.seconds += one.seconds;
      sum.read += one.read;
      sum.written += one.written;
    }
    return sum;
  };
  const ReplayedRound none = steps(0), some = steps(5);
  EXPECT_LT(some.seconds, none.seconds - 20);
  EXPECT_LE(some.total(), none.total() + page * 5);  // of the round that follows
}

// A tile is read in 1 s, written beside that in 1 s, and updated in 0.5 s; the first ones are read in the backward.
TEST(ReplayUpdate, ReadsAsManyTilesOfLaterFlatsAheadAsItMay) {
  const AccessTrace trace = step_of(10);
  ReplayOptions options{.host_budget = page * 30, .update_beside = true, .dropped_ahead = 4};
  options.costs = {.disks = {{.rates = {.read = 4096, .write = 4096, .mixed = 8192}}}};
  options.costs->use[static_cast<std::size_t>(Purpose::parameter_shard)] = 4096;
  options.costs->use[static_cast<std::size_t>(Purpose::optimizer_tile)] = 4096 / 0.5;
  const auto update = [&](std::uint32_t most) {
    options.dropped_ahead_later = most;
    const auto replay = Replay::create(trace, options).value();
    for (int round = 0; round < 5; ++round) (void)replay->round().value();
    return replay->round().value().update;
  };
  EXPECT_NEAR(update(0), 0.5 + 9 * 1.5, 1e-9);  // each tile but the first one is read when it is used
  EXPECT_NEAR(update(1), 9 * 1 + 0.5, 1e-9);    // beside the update of the one before
  EXPECT_NEAR(update(4), 6 * 1 + 0.5, 1e-9);    // four were read in the backward
  EXPECT_EQ(update(4000), update(4));           // dropped_ahead
}

// What an update has changed fills the memory, and shards would leave it, where the disk is slower than the update.
TEST(ReplayUpdate, WaitsForStoresBeforeMoreTilesAreChanged) {
  AccessTrace trace = step_of(10);
  for (AccessTrace::Tensor& tensor : trace.tensors)
    if (tensor.purpose == Purpose::parameter_shard) tensor.on_disk = tensor.write_behind = true;
  ReplayCosts costs{.disks = {{.rates = {.read = 16384, .write = 2048, .mixed = 4096}}}};
  costs.use[static_cast<std::size_t>(Purpose::parameter_shard)] = 4096;
  const auto steady = [&](ReplayOptions options) {
    options.host_budget = page * 26;  // gradients, shards, and six tiles
    options.costs = costs;
    options.update_beside = options.update_in_backward = true;
    options.dropped_ahead = 2;
    const auto replay = Replay::create(trace, options).value();
    for (int round = 0; round < 8; ++round) (void)replay->round().value();
    return replay->round().value();
  };
  const ReplayedRound waits = steady({.stores_max = 2}), fills = steady({});
  EXPECT_EQ(waits.read, page * 10);  // the tiles
  EXPECT_GT(fills.read, waits.read);
}

/// Two units of 2^20 parameters in bf16, with parameters and fp32 states on disk: as penstock trace derive gives it.
AccessTrace step_on_disk() {
  std::string text = "penstock-trace 1\n";
  for (const char* const unit : {"a", "b"})
    text += std::string("tensor 2097152 disk,write_behind parameter_shards ") + unit + " shard\n";
  for (const char* const unit : {"b", "a"})
    text += std::string("tensor 2097152 memory gradient_shards ") + unit + " gradient\n";
  for (int tile = 0; tile < 8; ++tile)
    text += "tensor 3145728 disk,write_behind,dropped optimizer_tiles tile " + std::to_string(tile) + "\n";
  text += "use 0 read\nuse 1 read\n";            // forward
  text += "use 2 overwrite\nuse 3 overwrite\n";  // backward
  text += "use 3 read\nuse 0 overwrite\nuse 4 modify\nuse 5 modify\nuse 6 modify\nuse 7 modify\n";
  text += "use 2 read\nuse 1 overwrite\nuse 8 modify\nuse 9 modify\nuse 10 modify\nuse 11 modify\nend 16\n";
  return parse_trace(text).value();
}

// docs/policies.md counts these bytes.
TEST(ReplayOfAStep, MovesTheBytesThatAHandCounts) {
  const AccessTrace trace = step_on_disk();
  for (const Eviction eviction : {Eviction::planned, Eviction::lru}) {
    const auto replay = Replay::create(trace, {.host_budget = 12_MiB, .eviction = eviction}).value();
    const ReplayedRound first = replay->round().value();
    EXPECT_EQ(first.read, 28_MiB);
    EXPECT_EQ(first.written, 28_MiB);
    for (int step = 1; step < 3; ++step) {
      const ReplayedRound later = replay->round().value();
      EXPECT_EQ(later.read, 24_MiB);
      EXPECT_EQ(later.written, 28_MiB);
    }
  }
}

}  // namespace
}  // namespace penstock::swap
