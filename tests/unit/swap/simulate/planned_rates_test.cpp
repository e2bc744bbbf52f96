// Eviction::planned with the times that paths take, beside the same where all bytes cost alike, in simulated time.
#include "unit/swap/simulate/random_traces.hpp"

#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::SeededRandom;
using test::page;
using test::random_budget;
using test::random_trace;

/// Whose rates are known.
ReplayCosts::Disk disk(double read, double write, double weight) {
  const double both = 2 * read * write / (read + write);
  return {.rates = {.read = read * 1e6, .write = write * 1e6, .mixed = both * 1e6},
          .weight = weight,
          .eviction = {.read = 1 / read, .write = 1 / write}};
}

double seconds_of(const AccessTrace& trace, const ReplayOptions& options) {
  const auto replay = Replay::create(trace, options).value();
  double seconds = 0;
  for (int round = 0; round < 4; ++round) seconds += replay->round().value().seconds;
  return seconds;
}

struct Seconds {
  double by_rate = 0, alike = 0;
  [[nodiscard]] double ratio() const { return by_rate / alike; }
};
/// With the rates of the disks, and if all bytes cost alike.
void add_seconds(const AccessTrace& trace, ReplayOptions options, Seconds& sum) {
  sum.by_rate += seconds_of(trace, options);
  for (ReplayCosts::Disk& one : options.costs->disks) one.eviction = {};
  sum.alike += seconds_of(trace, options);
}

/// Of 1000 random traces.
double ratio(const std::vector<ReplayCosts::Disk>& disks, ByteCount lookahead) {
  SeededRandom random(1);
  Seconds sum;
  for (int i = 0; i < 1000; ++i) {
    const AccessTrace trace = random_trace(random);
    add_seconds(trace,
                {.host_budget = random_budget(trace, random),
                 .lookahead = lookahead,
                 .ranges = tiers::MemoryBudget::Ranges::counted,
                 .costs = ReplayCosts{.disks = disks}},
                sum);
  }
  return sum.ratio();
}

// docs/policies.md states these figures.
TEST(PlannedRates, OfDisksShortenRandomTraces) {
  for (const double weight : {1.0, 4.0}) {
    for (const ByteCount lookahead : {ByteCount(), page * 4}) {
      const double by_rate = ratio({disk(4, 4, weight), disk(1, 1, 1)}, lookahead);
      EXPECT_LT(by_rate, 0.98) << weight << ", " << lookahead.value();
    }
  }
}

// Why those of reads and writes are no part of a runtime's costs.
TEST(PlannedRates, OfReadsAndWritesMatterLittle) {
  for (const ByteCount lookahead : {ByteCount(), page * 4}) {
    const double slow_writes = ratio({disk(4, 1, 1)}, lookahead),
                 slow_reads = ratio({disk(1, 4, 1)}, lookahead);
    EXPECT_GT(slow_writes, 0.98) << lookahead.value();
    EXPECT_LE(slow_writes, 1.0);
    EXPECT_GT(slow_reads, 0.98) << lookahead.value();
    EXPECT_LE(slow_reads, 1.0);
  }
}

/// Sweeps over a hundred tensors of one size on disks of 4 : 1, with memory for a part of them, beside the same where
/// all bytes cost alike.
double sweep_ratio(Access access, std::uint64_t room, double weight, ByteCount lookahead) {
  AccessTrace trace;
  for (std::uint32_t i = 0; i < 100; ++i) {
    trace.tensors.push_back(
        {.name = "tensor " + std::to_string(i), .size = page, .write_behind = access == Access::modify});
    trace.uses.push_back({i, access});
  }
  Seconds sum;
  add_seconds(trace,
              {.host_budget = page * room,
               .lookahead = lookahead,
               .costs = ReplayCosts{.disks = {disk(4, 4, weight), disk(1, 1, 1)}}},
              sum);
  return sum.ratio();
}

TEST(PlannedRates, HelpASweepThatReadsNothingAheadAndDelayNoneThatDoes) {
  for (const double weight : {1.0, 4.0}) {
    for (const std::uint64_t room : {30u, 60u, 90u}) {
      EXPECT_LT(sweep_ratio(Access::read, room, weight, {}), 0.95) << weight << ", " << room;
      EXPECT_LT(sweep_ratio(Access::modify, room, weight, {}), 1.06) << weight << ", " << room;
      for (const Access access : {Access::read, Access::modify})
        EXPECT_LE(sweep_ratio(access, room, weight, page * 16), 1.0) << weight << ", " << room;
    }
  }
}

}  // namespace
}  // namespace penstock::swap
