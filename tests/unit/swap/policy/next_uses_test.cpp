#include "swap/policy/access_trace.hpp"

#include <gtest/gtest.h>

namespace penstock::swap {
namespace {

constexpr tiers::TensorId a{1}, b{2}, c{3};

/// How many uses from now on until `tensor` is used.
std::uint64_t uses_until(const AccessTrace& trace, tiers::TensorId tensor) {
  const std::uint64_t next = trace.next_use(tensor);
  return next == AccessTrace::never ? next : next - trace.position();
}

TEST(AccessTrace, KnowsTheFutureAfterOneRound) {
  AccessTrace trace;
  for (const auto t : {a, b, c, b, a}) trace.use(t);
  EXPECT_EQ(uses_until(trace, a), AccessTrace::never);
  trace.end_round();

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, a), 0u);
  EXPECT_EQ(uses_until(trace, c), 2u);
  trace.use(a);
  EXPECT_EQ(uses_until(trace, a), 3u);
  EXPECT_EQ(trace.at(trace.position()), b);
  for (const auto t : {b, c, b}) trace.use(t);
  EXPECT_EQ(uses_until(trace, c), 3u);  // in the next round: a, a, b, then c
  EXPECT_EQ(uses_until(trace, tiers::TensorId{9}), AccessTrace::never);
}

TEST(AccessTrace, RecordsAgainWhenTheUsesChange) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();

  trace.use(a);
  trace.use(c);
  EXPECT_EQ(trace.use(c), AccessTrace::never);
  EXPECT_FALSE(trace.known());
  trace.end_round();

  EXPECT_EQ(trace.length(), 3u);
  EXPECT_EQ(uses_until(trace, c), 1u);
  EXPECT_EQ(uses_until(trace, b), AccessTrace::never);
}

// Two threads, one of which uses a and b, the other c.
TEST(AccessTrace, KnowsTheFutureAlthoughUsesChangePlaces) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();

  EXPECT_EQ(trace.use(c), trace.position() + 2);
  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, a), 0u);
  EXPECT_EQ(uses_until(trace, c), 5u);  // after a, b, and a, b again
  EXPECT_FALSE(trace.at(trace.position() + 2));
  EXPECT_EQ(trace.at(trace.position() + 1), b);
  trace.use(a);
  trace.use(b);
  EXPECT_EQ(uses_until(trace, c), 2u);
  trace.end_round();

  EXPECT_EQ(uses_until(trace, c), 0u);  // the new order
  EXPECT_EQ(uses_until(trace, a), 1u);
  EXPECT_EQ(uses_until(trace, b), 2u);
}

TEST(AccessTrace, ForgetsATensorWhoseUseHasChangedItsPlace) {
  AccessTrace trace;
  for (const auto t : {a, b, c, a}) trace.use(t);
  trace.end_round();
  for (const auto t : {c, a}) trace.use(t);
  trace.forget(a);
  trace.use(b);
  trace.end_round();

  EXPECT_EQ(trace.length(), 2u);
  EXPECT_EQ(uses_until(trace, c), 0u);
  EXPECT_EQ(uses_until(trace, b), 1u);
  EXPECT_EQ(uses_until(trace, a), AccessTrace::never);
  EXPECT_EQ(trace.use(a), AccessTrace::never);
}

TEST(AccessTrace, StartsTheRoundAgainWhenItIsNotEnded) {
  AccessTrace trace;
  for (const auto t : {a, b}) trace.use(t);
  trace.end_round();
  for (const auto t : {a, b, c}) trace.use(t);  // c where the round would begin with a
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u);
  EXPECT_EQ(uses_until(trace, c), 0u);
}

TEST(AccessTrace, ForgetsTheTailOfAShorterRound) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();
  trace.use(a);
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u);
  EXPECT_EQ(uses_until(trace, b), AccessTrace::never);
}

TEST(AccessTrace, ForgetsOneTensorAndKeepsTheRestOfTheOrder) {
  AccessTrace trace;
  for (const int tensor : {1, 2, 3, 2, 4}) trace.use(tiers::TensorId(tensor));
  trace.end_round();
  for (const int tensor : {1, 2}) trace.use(tiers::TensorId(tensor));

  trace.forget(tiers::TensorId(2));

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, tiers::TensorId(2)), AccessTrace::never);
  EXPECT_EQ(uses_until(trace, tiers::TensorId(3)), 0u);
  EXPECT_LT(trace.next_use(tiers::TensorId(3)), trace.next_use(tiers::TensorId(4)));
  EXPECT_LT(trace.next_use(tiers::TensorId(4)), trace.next_use(tiers::TensorId(1)));
  trace.use(tiers::TensorId(3));
  EXPECT_TRUE(trace.known());
  for (const int tensor : {1, 3, 4}) trace.forget(tiers::TensorId(tensor));
  EXPECT_FALSE(trace.known());
}

TEST(AccessTrace, KeepsPositionsUntilTheTensorIsUsedOrTheOrderChanges) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();
  const std::uint64_t revision = trace.revision(), next_b = trace.next_use(b), next_c = trace.next_use(c);
  for (int round = 0; round < 3; ++round) {
    trace.use(a);
    EXPECT_EQ(trace.next_use(b), next_b + 3 * static_cast<std::uint64_t>(round));
    trace.use(b);
    EXPECT_EQ(trace.next_use(c), next_c + 3 * static_cast<std::uint64_t>(round));
    trace.use(c);
    trace.end_round();
  }
  EXPECT_EQ(trace.revision(), revision);

  trace.use(b);
  EXPECT_EQ(trace.next_use(a), trace.position());
  EXPECT_EQ(trace.next_use(c), trace.position() + 2);
  EXPECT_EQ(trace.revision(), revision);
  trace.use(b);
  EXPECT_NE(trace.revision(), revision);
}

TEST(AccessTrace, ForgetsManyTensorsWithoutARevisionEach) {
  AccessTrace trace;
  for (std::uint32_t i = 0; i < 100; ++i) trace.use(tiers::TensorId(i));
  trace.end_round();
  const std::uint64_t revision = trace.revision();
  for (std::uint32_t i = 0; i < 40; ++i) trace.forget(tiers::TensorId(i * 2));

  EXPECT_EQ(trace.revision(), revision);
  EXPECT_FALSE(trace.at(trace.position()));
  for (std::uint32_t i = 0; i < 100; ++i) {
    if (i % 2 == 1 || i >= 80) trace.use(tiers::TensorId(i));
  }
  trace.end_round();
  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, tiers::TensorId(1)), 1u);
}

}  // namespace
}  // namespace penstock::swap
