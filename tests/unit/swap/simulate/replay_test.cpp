#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {
namespace {

constexpr ByteCount page = 4_KiB;

AccessTrace::Tensor tensor(const std::string& name, ByteCount size = page) {
  return {.name = name, .size = size};
}
std::unique_ptr<Replay> replay_of(const AccessTrace& trace, const ReplayOptions& options) {
  return Replay::create(trace, options).value();
}

// docs/policies.md counts these bytes by hand: a sweep over four tiles in memory for three.
TEST(Replay, MovesTheBytesThatAHandCounts) {
  AccessTrace trace;
  for (std::uint32_t i = 0; i < 4; ++i) {
    trace.tensors.push_back(tensor("tile " + std::to_string(i + 1)));
    trace.uses.push_back({i, Access::modify});
  }
  using Pages = std::vector<std::pair<std::uint64_t, std::uint64_t>>;  // read and written in each round
  const auto pages = [&](Eviction eviction) {
    const auto replay = replay_of(trace, {.host_budget = page * 3, .eviction = eviction});
    Pages moved;
    for (int round = 0; round < 4; ++round) {
      const ReplayedRound traffic = replay->round().value();
      moved.emplace_back(traffic.read / page, traffic.written / page);
    }
    EXPECT_EQ(replay->flush(), page * 3);
    EXPECT_EQ(replay->flush(), 0_B);
    return moved;
  };
  EXPECT_EQ(pages(Eviction::lru), (Pages{{4, 1}, {4, 4}, {4, 4}, {4, 4}}));
  EXPECT_EQ(pages(Eviction::planned), (Pages{{4, 1}, {1, 1}, {1, 1}, {2, 2}}));
}

TEST(Replay, KnowsTheSecondRoundWithoutAPrediction) {
  const AccessTrace trace{.tensors = {tensor("a"), tensor("b"), tensor("c")},
                          .uses = {{0, Access::read}, {1, Access::read}, {2, Access::read}}};
  const auto replay = replay_of(trace, {.host_budget = page * 2, .predicted = false});
  EXPECT_EQ(replay->round().value().read, page * 3);
  EXPECT_EQ(replay->round().value().read, page * 2);  // the first round has left b and c, lru's choice
}

// A fraction c of the tiles is in memory when its turn comes, and moves nothing.
TEST(Replay, MovesWhatMemoryDoesNotHoldOfTheTilesOfASweep) {
  AccessTrace trace;
  constexpr std::uint64_t tiles = 100;
  for (std::uint32_t i = 0; i < tiles; ++i) {
    trace.tensors.push_back(tensor("tile " + std::to_string(i)));
    trace.uses.push_back({i, Access::modify});
  }
  for (const std::uint64_t in_memory : {30u, 50u, 90u}) {
    const auto replay = replay_of(trace, {.host_budget = page * (in_memory + 1)});
    for (int round = 0; round < 3; ++round) {
      const auto moved = replay->round().value();
      if (round == 0) continue;  // of which nothing was in memory
      EXPECT_LE(moved.read, page * (tiles - in_memory));
      EXPECT_LE(moved.written, page * (tiles - in_memory));
      EXPECT_GE(moved.read, page * (tiles - in_memory - 1));
    }
  }
}

TEST(Replay, ReadsNothingAheadThatIsOverwritten) {
  const AccessTrace trace{.tensors = {tensor("a"), tensor("b")},
                          .uses = {{0, Access::read}, {1, Access::overwrite}}};
  const auto replay = replay_of(trace, {.host_budget = page * 4, .lookahead = page * 4});
  EXPECT_EQ(replay->round().value().read, page);
}

TEST(Replay, DropsAfterTheUseWhatIsUsedTooLate) {
  const AccessTrace trace{
      .tensors = {tensor("a"), tensor("b"), tensor("c")},
      .uses = {{0, Access::read}, {1, Access::read}, {2, Access::read}, {0, Access::read}}};
  const auto read = [&](ByteCount most) {
    const auto replay = replay_of(
        trace, {.host_budget = page * 8, .eviction = Eviction::reuse_distance, .reuse_distance_max = most});
    (void)replay->round();
    return replay->round().value().read;
  };
  EXPECT_EQ(read(page * 2), page * 4);  // a comes after two pages
  EXPECT_EQ(read(page * 2 + 1_B), page * 3);
}

TEST(Replay, NamesTheUseForWhichThereIsNoRoom) {
  const auto of = [](const char* name, tiers::Purpose purpose, ByteCount size) {
    return AccessTrace::Tensor{.name = name, .size = size, .purpose = purpose};
  };
  // The update holds the shard in the middle of the memory, where it was read, and the tile has no gap beside it.
  const AccessTrace trace{
      .tensors = {of("before", tiers::Purpose::scratch, page * 2),
                  of("shard", tiers::Purpose::parameter_shard, page),
                  of("gradient", tiers::Purpose::gradient_shard, page),
                  of("tile", tiers::Purpose::optimizer_tile, page * 4)},
      .uses = {
          {0, Access::read}, {1, Access::read}, {2, Access::read}, {1, Access::modify}, {3, Access::modify}}};
  const auto replay = replay_of(trace, {.host_budget = page * 6, .update_beside = true});
  (void)replay->round();  // whose update runs beside the next
  const auto round = replay->round();
  ASSERT_FALSE(round);
  EXPECT_NE(round.error().message().find("use  4 of the trace"), std::string::npos)
      << round.error().message();
  EXPECT_EQ(round.error().message().find("end leases"), std::string::npos) << round.error().message();
  EXPECT_NE(round.error().message().find("room in every order with 104.0 KiB (106496 B)"), std::string::npos)
      << round.error().message();
  EXPECT_TRUE(replay_of(trace, {.host_budget = page * 26, .update_beside = true})->round());
}

TEST(Replay, RefusesABudgetWithoutRoomForWhatAnUpdateHolds) {
  const auto of = [](const char* name, tiers::Purpose purpose, ByteCount size) {
    return AccessTrace::Tensor{.name = name, .size = size, .purpose = purpose};
  };
  // It holds the gradient and the shard while it uses the tile.
  const AccessTrace trace{.tensors = {of("gradient", tiers::Purpose::gradient_shard, page),
                                      of("shard", tiers::Purpose::parameter_shard, page),
                                      of("tile", tiers::Purpose::optimizer_tile, page * 4)},
                          .uses = {{0, Access::read}, {1, Access::overwrite}, {2, Access::modify}}};
  EXPECT_TRUE(Replay::create(trace, {.host_budget = page * 4}));  // one after the other
  const auto refused = Replay::create(trace, {.host_budget = page * 6 - 1_B, .update_beside = true});
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message().find("at least 24.0 KiB"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find("the update holds 24.0 KiB with tile"), std::string::npos)
      << refused.error().message();

  const auto least = replay_of(trace, {.host_budget = page * 6, .update_beside = true});
  EXPECT_TRUE(least->round());
  EXPECT_TRUE(least->round());
}

TEST(Replay, RefusesWhatDoesNotFit) {
  const AccessTrace trace{.tensors = {tensor("small"), tensor("large", page * 4)},
                          .uses = {{0, Access::read}, {1, Access::read}}};
  const auto refused = Replay::create(trace, {.host_budget = page * 3});
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("large"), std::string::npos);

  AccessTrace held = trace;
  held.tensors.push_back({.name = "kept", .size = page, .on_disk = false});
  const auto beside = Replay::create(held, {.host_budget = page * 4});
  ASSERT_FALSE(beside);
  EXPECT_NE(beside.error().message().find("at least 20.0 KiB"), std::string::npos)
      << beside.error().message();
  EXPECT_NE(beside.error().message().find("100.0 KiB (102400 B) has room in every order"), std::string::npos)
      << beside.error().message();
  EXPECT_TRUE(Replay::create(held, {.host_budget = page * 5}));

  held.uses.push_back({9, Access::read});
  EXPECT_EQ(Replay::create(held, {.host_budget = 1_MiB}).error().code(), ErrorCode::invalid_argument);
}

}  // namespace
}  // namespace penstock::swap
