// How much host memory engines need that share it: just enough for the worst places of their leases.
#include "zero/layout/host_staging.hpp"
#include "tiers/store/memory_budget.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

namespace penstock::zero {
namespace {

using swap::RuntimeUse;

constexpr ByteCount granule = 4_KiB;

RuntimeUse engine_of(const StreamedSizes& largest) {
  return {.host = host_staging(largest),
          .staging = host_staging(largest),
          .held = held_cases(largest),
          .in_place = largest.leases,
          .in_place_gap = lease_gap(largest)};
}

/// Whether a range of `waits_for` fits into `memory` in which `leases` are where that is hardest: with equal gaps, if
/// these are smaller, else with gaps that are a granule smaller, and all the rest behind them.
bool fits_beside(ByteCount memory, const std::vector<ByteCount>& leases, ByteCount waits_for) {
  tiers::Ledger ledger;
  tiers::MemoryBudget budget(tiers::Tier::host, memory, ledger);
  const auto reserve = [&](ByteCount size) { return budget.reserve(size, tiers::Purpose::staging).value(); };
  const ByteCount leased = std::accumulate(leases.begin(), leases.end(), ByteCount());
  const ByteCount equal = round_up((memory - leased) / (leases.size() + 1), Alignment(granule.value()));
  std::vector<tiers::Reservation> held, gaps;
  for (const ByteCount lease : leases) {
    gaps.push_back(reserve(std::min(equal, waits_for - granule)));
    held.push_back(reserve(lease));
  }
  gaps.clear();
  return budget.reserve(waits_for, tiers::Purpose::staging).has_value();
}

/// Both engines hold what `actor` and `reference` say, and the actor waits.
bool makes_progress(ByteCount memory, const std::vector<ByteCount>& actor,
                    const std::vector<ByteCount>& reference, ByteCount waits_for) {
  std::vector<ByteCount> leases = actor;
  leases.insert(leases.end(), reference.begin(), reference.end());
  return fits_beside(memory, leases, waits_for);
}

TEST(HostStaging, OfOneEngineIsThatOfItsWorstCase) {
  // The example in the comment.
  const StreamedSizes largest{.tile = 3_MiB, .shard = 4_MiB, .gradient = 8_MiB, .incoming = 4_MiB};
  EXPECT_EQ(host_staging(largest), 24_MiB);
  const RuntimeUse one = engine_of(largest);
  EXPECT_EQ(host_staging(std::span(&one, 1)), 24_MiB);
  EXPECT_EQ(host_memory(std::span(&one, 1)), 24_MiB);
}

// An update holds shard and gradient, an accumulation the larger of what it adds: 4 + 8 + 8, and 4 gaps of a gradient.
TEST(HostStaging, OfAnUpdateInTheBackwardHasRoomForBothAtATime) {
  StreamedSizes largest{.tile = 3_MiB, .shard = 4_MiB, .gradient = 8_MiB, .incoming = 4_MiB};
  largest.in_backward = true;
  EXPECT_EQ(host_staging(largest), 20_MiB + 4 * 8_MiB);
  for (const ByteCount waits_for : {3_MiB, 4_MiB, 8_MiB})
    EXPECT_TRUE(fits_beside(host_staging(largest), {4_MiB, 8_MiB, 8_MiB}, waits_for));
  EXPECT_FALSE(fits_beside(host_staging(largest) - granule * 4, {4_MiB, 8_MiB, 8_MiB}, 8_MiB));
}

TEST(HostStaging, OfTwoEnginesHasRoomForTheWorstPlacesOfAllLeasesAndNoMore) {
  const StreamedSizes largest{.tile = 3_MiB, .shard = 4_MiB, .gradient = 8_MiB, .incoming = 4_MiB};
  const std::array engines = {engine_of(largest), engine_of(largest)};

  const ByteCount memory = host_staging(engines);

  EXPECT_EQ(memory, 48_MiB);  // the example in the comment: one accumulates while the other one updates
  EXPECT_TRUE(makes_progress(memory, {4_MiB}, {4_MiB, 8_MiB}, 8_MiB));
  EXPECT_TRUE(makes_progress(memory, {4_MiB, 8_MiB}, {4_MiB, 8_MiB}, 4_MiB));
  EXPECT_FALSE(makes_progress(memory - granule * 4, {4_MiB}, {4_MiB, 8_MiB}, 8_MiB));
  // Their staging alone has 24 + 24 MiB: nothing more is needed.
  EXPECT_EQ(host_memory(engines), 48_MiB);
}

TEST(HostStaging, OfASmallEngineBesideALargeOneIsMoreThanTheSumOfBoth) {
  const StreamedSizes large{.tile = 12_MiB, .shard = 4_MiB, .gradient = 8_MiB, .incoming = 4_MiB};
  const StreamedSizes small{.shard = 1_MiB,
                            .leases = 6_MiB};  // three leases in place of 1 MiB, with gaps of 1 MiB
  const std::array engines = {engine_of(large), engine_of(small)};

  const ByteCount memory = host_memory(engines);

  EXPECT_GT(memory, host_staging(large) + host_staging(small));
  // The small engine holds its leases in place and one more shard, while the large one waits for a tile.
  EXPECT_TRUE(makes_progress(memory, {4_MiB, 8_MiB}, {1_MiB, 1_MiB, 1_MiB, 1_MiB}, 12_MiB));
  EXPECT_FALSE(makes_progress(host_staging(large) + host_staging(small), {4_MiB, 8_MiB},
                              {1_MiB, 1_MiB, 1_MiB, 1_MiB}, 12_MiB));
}

TEST(HostStaging, CountsTheLeasesOfAnUpdateOfTwoFlats) {
  const StreamedSizes largest{.tile = 3_MiB, .shard = 4_MiB, .gradient = 8_MiB};
  RuntimeUse two = engine_of(largest);
  two.held = held_cases(largest, 2);
  const std::array engines = {two, engine_of({.shard = 4_MiB})};

  const ByteCount memory = host_staging(engines);

  EXPECT_TRUE(makes_progress(memory, {4_MiB, 8_MiB, 4_MiB, 8_MiB}, {4_MiB}, 4_MiB));
  EXPECT_TRUE(makes_progress(memory, {4_MiB, 8_MiB}, {4_MiB}, 8_MiB));
}

}  // namespace
}  // namespace penstock::zero
