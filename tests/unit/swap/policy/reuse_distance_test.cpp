#include "swap/policy/reuse_distance.hpp"

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <vector>

namespace penstock::swap {
namespace {

constexpr tiers::TensorId a{1}, b{2}, c{3};

/// Bytes: a 3, b 2, c 2.
ByteCount size_of(tiers::TensorId tensor) {
  return ByteCount(tensor == a ? 3 : 2);
}

std::vector<NextUses::Use> reads(const std::vector<tiers::TensorId>& tensors) {
  std::vector<NextUses::Use> uses;
  for (const auto tensor : tensors) uses.push_back({tensor, Access::read});
  return uses;
}

/// Whether each of the uses of the round leaves its tensor in memory.
std::vector<bool> kept(const std::vector<tiers::TensorId>& round, std::uint64_t most) {
  NextUses uses;
  uses.predict(reads(round));
  ReuseDistance distance{ByteCount(most)};
  distance.rebuild(uses, size_of);
  std::vector<bool> kept;
  for (const auto tensor : round) {
    uses.use(tensor, Access::read);
    kept.push_back(distance.keeps(uses, tensor));
  }
  return kept;
}

TEST(ReuseDistance, CountsTheBytesOfTheUsesBetween) {
  EXPECT_EQ(kept({a, b, c, a}, 4), (std::vector<bool>{false, false, false, false}));
  EXPECT_EQ(kept({a, b, c, a}, 5), (std::vector<bool>{true, false, false, false}));
  EXPECT_EQ(kept({a, b, b, b, a}, 6),
            (std::vector<bool>{false, true, true, false, false}));  // b counts thrice
  EXPECT_EQ(kept({a, a}, 1), (std::vector<bool>{true, false}));
  EXPECT_EQ(kept({a, a}, 0), (std::vector<bool>{false, false}));
}

TEST(ReuseDistance, EndsWithTheRound) {
  EXPECT_EQ(kept({a, b}, 1'000'000), (std::vector<bool>{false, false}));
}

TEST(ReuseDistance, KeepsNothingWhileTheUsesAreNotKnown) {
  NextUses uses;
  uses.use(a, Access::read);
  ReuseDistance distance{1_MiB};
  distance.rebuild(uses, size_of);
  EXPECT_FALSE(distance.keeps(uses, a));
}

TEST(ReuseDistance, CountsNoForgottenTensors) {
  NextUses uses;
  uses.predict(reads({a, b, c, a}));
  uses.forget(c);
  ReuseDistance distance{ByteCount(3)};
  distance.rebuild(uses, size_of);
  uses.use(a, Access::read);
  EXPECT_TRUE(distance.keeps(uses, a));
}

/// The use of a module is that of its parameters, so that the order of modules is that of uses.
TEST(ReuseDistance, KeepsWhatDeepSpeedKeeps) {
  for (const Json::Value& golden : penstock::test::golden_json("reuse_distance.json")) {
    NextUses uses;
    std::vector<tiers::TensorId> order;
    for (const Json::Value& module : golden["order"]) order.push_back(tiers::TensorId(module.asUInt64()));
    uses.predict(reads(order));
    ReuseDistance distance{ByteCount(golden["max_reuse_distance"].asUInt64())};
    distance.rebuild(uses, [&](tiers::TensorId tensor) {
      return ByteCount(golden["numel"][static_cast<Json::ArrayIndex>(tensor)].asUInt64());
    });
    for (Json::ArrayIndex i = 0; i < order.size(); ++i) {
      uses.use(order[i], Access::read);
      EXPECT_EQ(distance.keeps(uses, order[i]), golden["kept"][i].asInt() == 1) << golden << i;
    }
  }
}

}  // namespace
}  // namespace penstock::swap
