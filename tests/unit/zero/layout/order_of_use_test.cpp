#include "zero/layout/order_of_use.hpp"

#include "kit/golden.hpp"

#include <gtest/gtest.h>
#include <json/json.h>
#include <cstdint>
#include <string>
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

TEST(UnitOrder, ComputesTheForwardOfSegmentsAgain) {
  EXPECT_EQ(order_with_recomputation(5, 1), unit_order(5, 1));
  EXPECT_EQ(order_with_recomputation(5, 2), (std::vector<std::uint32_t>{0, 1, 2, 3, 4, 4, 2, 3, 2, 0, 1, 0}));
  EXPECT_EQ(order_with_recomputation(3, 9), (std::vector<std::uint32_t>{0, 1, 2, 0, 1, 2, 1, 0}));
  EXPECT_TRUE(order_with_recomputation(0, 3).empty());
}

}  // namespace
}  // namespace penstock::zero
