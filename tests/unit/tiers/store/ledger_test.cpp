#include <penstock/tiers/store/ledger.hpp>

#include "kit/seeded_random.hpp"

#include <gtest/gtest.h>
#include <array>
#include <thread>
#include <vector>

namespace penstock::tiers {
namespace {

TEST(Ledger, CountsHeldBytesAndPeaksLikeAModel) {
  test::SeededRandom random(5);
  Ledger ledger;
  std::array<std::array<std::vector<std::uint64_t>, purpose_count>, tier_count> held;
  std::array<std::array<std::uint64_t, purpose_count>, tier_count> sum{}, peak{};
  std::array<std::uint64_t, tier_count> tier_sum{}, tier_peak{};
  for (int i = 0; i < 5000; ++i) {
    const std::size_t t = random.below(tier_count), p = random.below(purpose_count);
    if (held[t][p].empty() || random.below(2) == 0) {
      const std::uint64_t bytes = random.below(1000);
      held[t][p].push_back(bytes);
      sum[t][p] += bytes;
      tier_sum[t] += bytes;
      peak[t][p] = std::max(peak[t][p], sum[t][p]);
      tier_peak[t] = std::max(tier_peak[t], tier_sum[t]);
      ledger.hold(Tier(t), Purpose(p), ByteCount(bytes));
    } else {
      const std::uint64_t bytes = held[t][p].back();
      held[t][p].pop_back();
      sum[t][p] -= bytes;
      tier_sum[t] -= bytes;
      ledger.give_back(Tier(t), Purpose(p), ByteCount(bytes));
    }
    ASSERT_EQ(ledger.line(Tier(t), Purpose(p)).held, ByteCount(sum[t][p]));
    ASSERT_EQ(ledger.line(Tier(t), Purpose(p)).peak, ByteCount(peak[t][p]));
    ASSERT_EQ(ledger.peak(Tier(t)), ByteCount(tier_peak[t]));
  }
}

TEST(Ledger, AddsUpPredictionsOfSeveralEnginesAndTrafficOfAllPurposes) {
  Ledger ledger;
  for (int engine = 0; engine < 2; ++engine) {
    ledger.predict(Tier::host, Purpose::optimizer_tile, 10_KiB);
    ledger.predict_traffic(Purpose::optimizer_tile, 3_KiB, 4_KiB);
  }
  ledger.predict_traffic(Purpose::parameter_shard, 1_KiB, 0_KiB);
  ledger.read(Purpose::optimizer_tile, 2_KiB);
  ledger.wrote(Purpose::optimizer_tile, 5_KiB);
  ledger.read(Purpose::parameter_shard, 7_KiB);

  EXPECT_EQ(ledger.line(Tier::host, Purpose::optimizer_tile).predicted, 20_KiB);
  EXPECT_EQ(ledger.line(Tier::device, Purpose::optimizer_tile).predicted, 0_KiB);
  EXPECT_EQ(ledger.traffic(Purpose::optimizer_tile).predicted_written, 8_KiB);
  EXPECT_EQ(ledger.traffic(Purpose::optimizer_tile).read, 2_KiB);
  EXPECT_EQ(ledger.traffic().predicted_read, 7_KiB);
  EXPECT_EQ(ledger.traffic().read, 9_KiB);
  EXPECT_EQ(ledger.traffic().written, 5_KiB);
}

TEST(Ledger, CountsExactlyWithSeveralThreads) {
  Ledger ledger;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&ledger] {
      for (int i = 0; i < 2000; ++i) {
        ledger.hold(Tier::host, Purpose::scratch, 3_B);
        ledger.read(Purpose::scratch, 2_B);
        ledger.give_back(Tier::host, Purpose::scratch, 2_B);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();

  EXPECT_EQ(ledger.line(Tier::host, Purpose::scratch).held, ByteCount(8000));
  EXPECT_EQ(ledger.traffic().read, ByteCount(16000));
  EXPECT_GE(ledger.peak(Tier::host), ByteCount(8000));
}

}  // namespace
}  // namespace penstock::tiers
