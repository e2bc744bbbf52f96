#include "swap/policy/next_uses.hpp"

#include <gtest/gtest.h>
#include <vector>

namespace penstock::swap {
namespace {

constexpr tiers::TensorId a{1}, b{2}, c{3};

std::vector<NextUses::Use> reads(const std::vector<tiers::TensorId>& tensors) {
  std::vector<NextUses::Use> uses;
  for (const auto tensor : tensors) uses.push_back({tensor, Access::read});
  return uses;
}

/// How many uses from now on until `tensor` is used.
std::uint64_t uses_until(const NextUses& trace, tiers::TensorId tensor) {
  const std::uint64_t next = trace.next_use(tensor);
  return next == NextUses::never ? next : next - trace.position();
}

TEST(NextUses, KnowsTheFutureAfterOneRound) {
  NextUses trace;
  for (const auto t : {a, b, c, b, a}) trace.use(t, Access::read);
  EXPECT_EQ(uses_until(trace, a), NextUses::never);
  trace.end_round();

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, a), 0u);
  EXPECT_EQ(uses_until(trace, c), 2u);
  trace.use(a, Access::read);
  EXPECT_EQ(uses_until(trace, a), 3u);
  EXPECT_EQ(trace.at(trace.position()), b);
  for (const auto t : {b, c, b}) trace.use(t, Access::read);
  EXPECT_EQ(uses_until(trace, c), 3u);  // in the next round: a, a, b, then c
  EXPECT_EQ(uses_until(trace, tiers::TensorId{9}), NextUses::never);
}

TEST(NextUses, RecordsAgainWhenTheUsesChange) {
  NextUses trace;
  for (const auto t : {a, b, c}) trace.use(t, Access::read);
  trace.end_round();

  trace.use(a, Access::read);
  trace.use(c, Access::read);
  EXPECT_EQ(trace.use(c, Access::read), NextUses::never);
  EXPECT_FALSE(trace.known());
  trace.end_round();

  EXPECT_EQ(trace.length(), 3u);
  EXPECT_EQ(uses_until(trace, c), 1u);
  EXPECT_EQ(uses_until(trace, b), NextUses::never);
}

TEST(NextUses, TellWhetherTheContentsAreNeeded) {
  NextUses uses;
  uses.predict({{a, Access::read}, {b, Access::modify}, {a, Access::overwrite}});
  EXPECT_FALSE(uses.is_overwritten_next(a));
  EXPECT_FALSE(uses.is_overwritten_next(b));
  uses.use(a, Access::read);
  EXPECT_TRUE(uses.is_overwritten_next(a));
  EXPECT_FALSE(uses.is_overwritten_next(c));
  uses.use(b, Access::overwrite);  // otherwise than predicted: so the next round is
  EXPECT_TRUE(uses.is_overwritten_next(b));
}

TEST(NextUses, AreKnownBeforeTheFirstRoundThatIsPredicted) {
  NextUses uses;
  uses.predict(reads({a, b, c, b}));
  EXPECT_TRUE(uses.known());
  EXPECT_EQ(uses_until(uses, a), 0u);
  EXPECT_EQ(uses_until(uses, c), 2u);
  EXPECT_EQ(uses.use(a, Access::read), uses.round_begin());
  EXPECT_EQ(uses_until(uses, a), 3u);
  for (const auto t : {b, c, b}) EXPECT_NE(uses.use(t, Access::read), NextUses::never);
  uses.end_round();
  EXPECT_EQ(uses_until(uses, b), 1u);

  uses.use(a, Access::read);
  const std::uint64_t revision = uses.revision(), position = uses.position();
  uses.predict(reads({c, a}));  // within a round
  EXPECT_GT(uses.revision(), revision);
  EXPECT_GT(uses.position(), position);
  EXPECT_EQ(uses_until(uses, c), 0u);
  EXPECT_EQ(uses_until(uses, b), NextUses::never);
  uses.predict({});
  EXPECT_FALSE(uses.known());
  EXPECT_EQ(uses.use(b, Access::read), NextUses::never);
}

// Two threads, one of which uses a and b, the other c.
TEST(NextUses, KnowsTheFutureAlthoughUsesChangePlaces) {
  NextUses trace;
  for (const auto t : {a, b, c}) trace.use(t, Access::read);
  trace.end_round();

  EXPECT_EQ(trace.use(c, Access::read), trace.position() + 2);
  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, a), 0u);
  EXPECT_EQ(uses_until(trace, c), 5u);  // after a, b, and a, b again
  EXPECT_FALSE(trace.at(trace.position() + 2));
  EXPECT_EQ(trace.at(trace.position() + 1), b);
  trace.use(a, Access::read);
  trace.use(b, Access::read);
  EXPECT_EQ(uses_until(trace, c), 2u);
  trace.end_round();

  EXPECT_EQ(uses_until(trace, c), 0u);  // the new order
  EXPECT_EQ(uses_until(trace, a), 1u);
  EXPECT_EQ(uses_until(trace, b), 2u);
}

TEST(NextUses, ForgetsATensorWhoseUseHasChangedItsPlace) {
  NextUses trace;
  for (const auto t : {a, b, c, a}) trace.use(t, Access::read);
  trace.end_round();
  for (const auto t : {c, a}) trace.use(t, Access::read);
  trace.forget(a);
  trace.use(b, Access::read);
  trace.end_round();

  EXPECT_EQ(trace.length(), 2u);
  EXPECT_EQ(uses_until(trace, c), 0u);
  EXPECT_EQ(uses_until(trace, b), 1u);
  EXPECT_EQ(uses_until(trace, a), NextUses::never);
  EXPECT_EQ(trace.use(a, Access::read), NextUses::never);
}

TEST(NextUses, StartsTheRoundAgainWhenItIsNotEnded) {
  NextUses trace;
  for (const auto t : {a, b}) trace.use(t, Access::read);
  trace.end_round();
  for (int i = 0; i < 20; ++i) {
    for (const auto t : {a, b}) EXPECT_NE(trace.use(t, Access::read), NextUses::never);
  }
  EXPECT_EQ(trace.use(c, Access::read), NextUses::never);  // where the round would begin with a
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u) << "it was not ended for long";
  EXPECT_EQ(uses_until(trace, c), 0u);
}

// A longer round that begins like the one before it.
TEST(NextUses, KnowsALongerRoundOnceItHasEnded) {
  for (const std::vector<tiers::TensorId>& longer :
       {std::vector{a, b, a}, {a, b, c}, {b, a, c, c}, {a, b, b, a, a}}) {
    NextUses trace;
    for (const auto t : {a, b}) trace.use(t, Access::read);
    trace.end_round();
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < longer.size(); ++i) {
        EXPECT_TRUE(round == 0 || uses_until(trace, longer[i]) == 0) << round << ' ' << i;
        trace.use(longer[i], Access::read);
      }
      trace.end_round();
      EXPECT_EQ(trace.length(), longer.size()) << round;
    }
  }
}

TEST(NextUses, KeepsARoundThatEndsWithARepetition) {
  NextUses trace;
  for (const auto t : {a, b}) trace.use(t, Access::read);
  trace.end_round();
  const std::uint64_t revision = trace.revision();
  for (const auto t : {a, b, a, b}) EXPECT_NE(trace.use(t, Access::read), NextUses::never);
  trace.end_round();
  EXPECT_EQ(trace.length(), 2u);
  EXPECT_EQ(trace.revision(), revision);
}

TEST(NextUses, ForgetsTheTailOfAShorterRound) {
  NextUses trace;
  for (const auto t : {a, b, c}) trace.use(t, Access::read);
  trace.end_round();
  trace.use(a, Access::read);
  trace.end_round();

  EXPECT_EQ(trace.length(), 1u);
  EXPECT_EQ(uses_until(trace, b), NextUses::never);
}

TEST(NextUses, ForgetsOneTensorAndKeepsTheRestOfTheOrder) {
  NextUses trace;
  for (const int tensor : {1, 2, 3, 2, 4}) trace.use(tiers::TensorId(tensor), Access::read);
  trace.end_round();
  for (const int tensor : {1, 2}) trace.use(tiers::TensorId(tensor), Access::read);

  trace.forget(tiers::TensorId(2));

  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, tiers::TensorId(2)), NextUses::never);
  EXPECT_EQ(uses_until(trace, tiers::TensorId(3)), 0u);
  EXPECT_LT(trace.next_use(tiers::TensorId(3)), trace.next_use(tiers::TensorId(4)));
  EXPECT_LT(trace.next_use(tiers::TensorId(4)), trace.next_use(tiers::TensorId(1)));
  trace.use(tiers::TensorId(3), Access::read);
  EXPECT_TRUE(trace.known());
  for (const int tensor : {1, 3, 4}) trace.forget(tiers::TensorId(tensor));
  EXPECT_FALSE(trace.known());
}

TEST(NextUses, KeepsPositionsUntilTheTensorIsUsedOrTheOrderChanges) {
  NextUses trace;
  for (const auto t : {a, b, c}) trace.use(t, Access::read);
  trace.end_round();
  const std::uint64_t revision = trace.revision(), next_b = trace.next_use(b), next_c = trace.next_use(c);
  for (int round = 0; round < 3; ++round) {
    trace.use(a, Access::read);
    EXPECT_EQ(trace.next_use(b), next_b + 3 * static_cast<std::uint64_t>(round));
    trace.use(b, Access::read);
    EXPECT_EQ(trace.next_use(c), next_c + 3 * static_cast<std::uint64_t>(round));
    trace.use(c, Access::read);
    trace.end_round();
  }
  EXPECT_EQ(trace.revision(), revision);

  trace.use(b, Access::read);
  EXPECT_EQ(trace.next_use(a), trace.position());
  EXPECT_EQ(trace.next_use(c), trace.position() + 2);
  EXPECT_EQ(trace.revision(), revision);
  trace.use(b, Access::read);
  EXPECT_NE(trace.revision(), revision);
}

TEST(NextUses, ForgetsManyTensorsWithoutARevisionEach) {
  NextUses trace;
  for (std::uint32_t i = 0; i < 100; ++i) trace.use(tiers::TensorId(i), Access::read);
  trace.end_round();
  const std::uint64_t revision = trace.revision();
  for (std::uint32_t i = 0; i < 40; ++i) trace.forget(tiers::TensorId(i * 2));

  EXPECT_EQ(trace.revision(), revision);
  EXPECT_FALSE(trace.at(trace.position()));
  for (std::uint32_t i = 0; i < 100; ++i) {
    if (i % 2 == 1 || i >= 80) trace.use(tiers::TensorId(i), Access::read);
  }
  trace.end_round();
  EXPECT_TRUE(trace.known());
  EXPECT_EQ(uses_until(trace, tiers::TensorId(1)), 1u);
}

}  // namespace
}  // namespace penstock::swap
