#include <penstock/swap/policy/access_trace.hpp>

#include <gtest/gtest.h>

namespace penstock::swap {
namespace {

constexpr tiers::TensorId a{1}, b{2}, c{3};

TEST(AccessTrace, KnowsTheFutureAfterOneRound) {
  AccessTrace trace;
  for (const auto t : {a, b, c, b, a}) trace.use(t);
  EXPECT_EQ(trace.next_use(a), AccessTrace::never);
  trace.end_round();

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(trace.next_use(a), 0u);
  EXPECT_EQ(trace.next_use(c), 2u);
  trace.use(a);
  EXPECT_EQ(trace.next_use(a), 3u);
  EXPECT_EQ(trace.upcoming(0), b);
  for (const auto t : {b, c, b}) trace.use(t);
  EXPECT_EQ(trace.next_use(c), 3u);  // in the next round: a, a, b, then c
  EXPECT_EQ(trace.next_use(tiers::TensorId{9}), AccessTrace::never);
}

TEST(AccessTrace, RecordsAgainWhenTheOrderChanges) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();

  trace.use(a);
  trace.use(c);
  EXPECT_FALSE(trace.known());
  trace.end_round();

  EXPECT_EQ(trace.length(), 2u);
  EXPECT_EQ(trace.next_use(c), 1u);
  EXPECT_EQ(trace.next_use(b), AccessTrace::never);
}

TEST(AccessTrace, StartsTheRoundAgainWhenItIsNotEnded) {
  AccessTrace trace;
  for (const auto t : {a, b}) trace.use(t);
  trace.end_round();
  for (const auto t : {a, b, c}) trace.use(t);  // c where the round would begin with a
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u);
  EXPECT_EQ(trace.next_use(c), 0u);
}

TEST(AccessTrace, ForgetsTheTailOfAShorterRound) {
  AccessTrace trace;
  for (const auto t : {a, b, c}) trace.use(t);
  trace.end_round();
  trace.use(a);
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u);
  EXPECT_EQ(trace.next_use(b), AccessTrace::never);
}

TEST(AccessTrace, ForgetsOneTensorAndKeepsTheRestOfTheOrder) {
  AccessTrace trace;
  for (const int tensor : {1, 2, 3, 2, 4}) trace.use(tiers::TensorId(tensor));
  trace.end_round();
  for (const int tensor : {1, 2}) trace.use(tiers::TensorId(tensor));

  trace.forget(tiers::TensorId(2));

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(trace.next_use(tiers::TensorId(2)), AccessTrace::never);
  EXPECT_EQ(trace.next_use(tiers::TensorId(3)), 0u);
  EXPECT_EQ(trace.next_use(tiers::TensorId(4)), 1u);
  EXPECT_EQ(trace.next_use(tiers::TensorId(1)), 2u);
  trace.use(tiers::TensorId(3));
  EXPECT_TRUE(trace.known());
  for (const int tensor : {1, 3, 4}) trace.forget(tiers::TensorId(tensor));
  EXPECT_FALSE(trace.known());
}

}  // namespace
}  // namespace penstock::swap
