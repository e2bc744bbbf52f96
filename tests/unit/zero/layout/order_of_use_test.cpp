#include "zero/layout/order_of_use.hpp"

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace penstock::zero {
namespace {

constexpr std::uint64_t scale = 4096;  // flats of whole pages are not padded

ModelLayout layout_of(const Json::Value& numel) {
  ModelLayout model;
  for (const Json::Value& count : numel) {
    const ElementCount elements(count.asUInt64() * scale);
    model.units.push_back({"unit" + std::to_string(model.units.size()), {{"weight", elements}}, {}});
  }
  return model;
}

// A flat is dropped when the next unit is acquired, DeepSpeed's parameters after their use. With a distance of 0
// DeepSpeed also drops what that unit needs.
TEST(OrderOfUse, NeedsWithinADistanceWhatDeepSpeedKeeps) {
  for (const Json::Value& golden : penstock::test::golden_json("reuse_distance.json")) {
    const ShardLayout shards(layout_of(golden["numel"]), 1);
    std::vector<std::uint32_t> units;
    for (const Json::Value& unit : golden["order"]) units.push_back(unit.asUInt());
    OrderOfUse order(shards, units);
    const ElementCount distance(golden["max_reuse_distance"].asUInt64() * scale);
    (void)order.note(units[0]);
    for (Json::ArrayIndex i = 0; i + 1 < units.size(); ++i) {
      order.end_use();
      (void)order.note(units[i + 1]);
      const bool kept = golden["kept"][i].asInt() == 1 || (distance.value() == 0 && units[i + 1] == units[i]);
      const std::uint32_t flat = shards.needed_by(units[i]).front();
      EXPECT_EQ(order.needed_within(distance, units[i + 1])[flat], kept) << golden << i;
    }
  }
}

using Units = std::vector<std::uint32_t>;

ModelLayout three_units() {
  ModelLayout model;
  for (const char* const name : {"a", "b", "c"})
    model.units.push_back({name, {{"weight", ElementCount(128)}}, {}});
  return model;
}

void use(OrderOfUse& order, const Units& units) {
  for (const std::uint32_t unit : units) {
    (void)order.note(unit);
    order.end_use();
  }
}

Units predicted(const OrderOfUse& order) {
  Units units;
  while (const auto unit = order.next(units.size())) units.push_back(*unit);
  return units;
}

TEST(OrderOfUse, IsThatOfTheLastStepWhereTheStepBeforeItHadItToo) {
  const ShardLayout shards(three_units(), 1);
  const Units plain = unit_order(3, 1), recomputing = {0, 1, 2, 0, 1, 2, 2, 1, 0};
  OrderOfUse order(shards, plain);
  order.expect(plain);
  for (const Units& of_step : {plain, plain, recomputing, recomputing}) {
    EXPECT_EQ(predicted(order), plain);
    EXPECT_TRUE(order.is_expected());
    use(order, of_step);
    EXPECT_EQ(order.is_expected(), of_step == plain);
    order.end_step();
    EXPECT_EQ(order.is_expected(), of_step == plain) << "of a step without expect()";
    order.expect(plain);
  }
  for (int repeated = 0; repeated < 3; ++repeated) {  // as a trainer may repeat begin_step()
    EXPECT_EQ(predicted(order), recomputing);
    EXPECT_FALSE(order.is_expected()) << "it is not rehearsed";
    use(order, {2, 1});  // an evaluation
    order.forget_uses();
    order.expect(repeated == 1 ? unit_order(3, 2) : plain);
    if (repeated == 1) {
      EXPECT_EQ(predicted(order), unit_order(3, 2)) << "other micro-batches";
      order.forget_uses();
      order.expect(plain);
    }
  }
  use(order, recomputing);
  order.end_step();
  order.expect(plain);
  EXPECT_EQ(predicted(order), recomputing);
  order.restart(plain);
  EXPECT_EQ(predicted(order), plain);
  use(order, recomputing);
  order.end_step();
  order.expect(plain);
  EXPECT_EQ(predicted(order), plain) << "of the steps since the restart one had it";
}

TEST(OrderOfUse, IsExpectedAgainWhereAUseIsUndone) {
  const ShardLayout shards(three_units(), 1);
  OrderOfUse order(shards, unit_order(3, 1));
  order.expect(unit_order(3, 1));
  auto other = order.note(2);
  EXPECT_FALSE(order.is_expected());
  order.undo(std::move(other));
  EXPECT_TRUE(order.is_expected());
  EXPECT_EQ(predicted(order), unit_order(3, 1));

  use(order, unit_order(3, 1));
  EXPECT_TRUE(order.is_expected());
  auto further = order.note(0);
  EXPECT_FALSE(order.is_expected()) << "a use more than the step was expected to have";
  order.undo(std::move(further));
  EXPECT_TRUE(order.is_expected());
}

TEST(OrderOfUse, TakesUsesBeyondAPredictionThatIsCutForTheExpectedOnes) {
  ModelLayout model;
  for (int unit = 0; unit < 600'000; ++unit) model.units.push_back({"", {{"weight", ElementCount(128)}}, {}});
  const ShardLayout shards(model, 1);
  const Units one = unit_order(model.units.size(), 2);  // the first micro-batch of two
  OrderOfUse order(shards, one);
  order.expect(one);
  use(order, one);
  EXPECT_TRUE(order.is_expected());
  use(order, {0});
  EXPECT_TRUE(order.is_expected());
}

TEST(UnitOrder, ComputesTheForwardOfSegmentsAgain) {
  EXPECT_EQ(order_with_recomputation(5, 1), unit_order(5, 1));
  EXPECT_EQ(order_with_recomputation(5, 2), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 4, 2, 3, 2, 0, 1, 0}));
  EXPECT_EQ(order_with_recomputation(3, 9), (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2, 1, 0}));
  EXPECT_TRUE(order_with_recomputation(0, 3).empty());
}

}  // namespace
}  // namespace penstock::zero
