// Eviction::planned beside the optimum, on all traces of a size, and beside lru, on random ones.
#include "unit/swap/simulate/optimum.hpp"
#include "unit/swap/simulate/random_traces.hpp"

#include "swap/simulate/replay.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <vector>

namespace penstock::swap {
namespace {

using penstock::test::SeededRandom;
using test::optimum;
using test::page;
using test::random_budget;
using test::random_trace;

AccessTrace trace_of(const std::vector<std::uint64_t>& pages) {
  AccessTrace trace;
  for (const std::uint64_t count : pages)
    trace.tensors.push_back({.name = "tensor " + std::to_string(trace.tensors.size()), .size = page * count});
  return trace;
}

/// Calls `each` with every trace of so many uses of the tensors, by the first `accesses` of read, modify, overwrite.
/// Of traces that only differ in the order of tensors of one size, one.
void for_all_traces(AccessTrace trace, std::size_t uses, std::uint64_t accesses, bool are_equal,
                    const std::function<void(const AccessTrace&)>& each) {
  std::uint32_t used = 0;
  for (const auto& use : trace.uses) used = std::max(used, use.tensor + 1);
  if (trace.uses.size() == uses) return each(trace);
  const auto tensors = static_cast<std::uint32_t>(trace.tensors.size());
  for (std::uint32_t tensor = 0; tensor < (are_equal ? std::min(used + 1, tensors) : tensors); ++tensor) {
    for (std::uint64_t access = 0; access < accesses; ++access) {
      trace.uses.push_back({tensor, static_cast<Access>(access)});
      for_all_traces(trace, uses, accesses, are_equal, each);
      trace.uses.pop_back();
    }
  }
}

using Ranges = tiers::MemoryBudget::Ranges;

/// Bytes of rounds that are predicted, and of the writes that are left.
ByteCount bytes_of(const AccessTrace& trace, ByteCount budget, Eviction eviction,
                   Ranges ranges = Ranges::counted, int rounds = 1) {
  const auto replay =
      Replay::create(trace, {.host_budget = budget, .eviction = eviction, .ranges = ranges}).value();
  ByteCount moved;
  for (int round = 0; round < rounds; ++round) moved += replay->round().value().total();
  return moved + replay->flush();
}

struct Comparison {
  std::uint64_t traces = 0, equal = 0;
  double worst = 1;  // bytes / least
};
Comparison compare(const AccessTrace& tensors, std::size_t uses, std::uint64_t accesses, ByteCount budget,
                   bool are_equal) {
  Comparison comparison;
  for_all_traces(tensors, uses, accesses, are_equal, [&](const AccessTrace& trace) {
    const ByteCount bytes = bytes_of(trace, budget, Eviction::planned), least = optimum(trace, budget);
    ASSERT_GE(bytes, least) << to_text(trace);
    ++comparison.traces;
    if (bytes == least) ++comparison.equal;
    const double ratio = static_cast<double>(bytes.value()) / static_cast<double>(least.value());
    comparison.worst = std::max(comparison.worst, ratio);
  });
  return comparison;
}

TEST(PlannedOptimum, IsReachedByReadsOfTensorsOfOneSize) {
  for (std::uint64_t room = 1; room <= 3; ++room) {
    const auto [traces, equal, worst] = compare(trace_of({1, 1, 1, 1}), 8, 1, page * room, true);
    EXPECT_EQ(traces, 2795u);
    EXPECT_EQ(equal, traces) << room << " tensors fit";
  }
}

// As tiles of optimizer states: each leaves memory with a write and comes back with a read.
TEST(PlannedOptimum, IsReachedByModificationsOfTensorsOfOneSize) {
  for (std::uint64_t room = 1; room <= 3; ++room) {
    std::uint64_t traces = 0;
    for_all_traces(trace_of({1, 1, 1, 1}), 8, 1, true, [&](AccessTrace trace) {
      for (auto& use : trace.uses) use.access = Access::modify;
      ASSERT_EQ(bytes_of(trace, page * room, Eviction::planned), optimum(trace, page * room))
          << to_text(trace);
      ++traces;
    });
    EXPECT_EQ(traces, 2795u);
  }
}

// To find the optimum is NP-hard as soon as what was changed costs a write (Farach, Liberatore 1998). docs/policies.md
// states these bounds.
TEST(PlannedOptimum, IsNearWhereReadsAndWritesAreMixed) {
  const auto [traces, equal, worst] = compare(trace_of({1, 1, 1}), 6, 3, page * 2, true);
  EXPECT_EQ(traces, 88'938u);
  EXPECT_GE(static_cast<double>(equal) / static_cast<double>(traces), 0.98);
  EXPECT_LE(worst, 1.25);
}

TEST(PlannedOptimum, IsNearWhereSizesDiffer) {
  const auto [traces, equal, worst] = compare(trace_of({1, 2, 3}), 6, 2, page * 4, false);
  EXPECT_EQ(traces, 46'656u);
  EXPECT_GE(static_cast<double>(equal) / static_cast<double>(traces), 0.94);
  EXPECT_LE(worst, 1.23);
}

struct BesideLru {
  std::uint64_t more = 0;  // traces in which planned moves more
  double worst = 1;        // its bytes / those of lru
  ByteCount planned, lru;
};
/// Four rounds of each trace.
BesideLru beside_lru(Ranges ranges) {
  SeededRandom random(1);
  BesideLru found;
  for (int i = 0; i < 10'000; ++i) {
    const AccessTrace trace = random_trace(random);
    const ByteCount budget = random_budget(trace, random);
    const ByteCount planned = bytes_of(trace, budget, Eviction::planned, ranges, 4),
                    lru = bytes_of(trace, budget, Eviction::lru, ranges, 4);
    if (planned > lru) ++found.more;
    if (!lru.is_zero())
      found.worst =
          std::max(found.worst, static_cast<double>(planned.value()) / static_cast<double>(lru.value()));
    found.planned += planned;
    found.lru += lru;
  }
  return found;
}

TEST(Planned, IsNeverWorseThanLruOnRandomTraces) {
  const auto [more, worst, planned, lru] = beside_lru(Ranges::counted);
  EXPECT_EQ(more, 0u);
  EXPECT_LT(planned.value(), lru.value() * 87 / 100);
}

// In memory with addresses a gap may be too short, and one more copy leaves, which lru may have placed luckily.
TEST(Planned, IsSeldomWorseThanLruWhereAGapMayBeTooShort) {
  const auto [more, worst, planned, lru] = beside_lru(Ranges::placed);
  EXPECT_LE(more, 45u);
  EXPECT_LE(worst, 1.4);
  EXPECT_LT(planned.value(), lru.value() * 87 / 100);
}

}  // namespace
}  // namespace penstock::swap
