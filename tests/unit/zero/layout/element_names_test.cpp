#include "zero/layout/shard_layout.hpp"

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

TEST(ElementNames, AreThoseOfTheParametersInARangeOfTheShard) {
  const ModelLayout model{
      .units = {{.name = "block", .parameters = {{"a", ElementCount(100)}, {"b", ElementCount(200)}}}},
      .groups = {{}}};
  const FlatLayout flat = ShardLayout(model, 2).flats()[0];  // a is at 0, b at 128; a shard has 256
  const auto name = [&](std::uint32_t rank, std::uint64_t first, std::uint64_t count) {
    return ElementNames{&model, rank}.of(flat, ElementCount(first), ElementCount(count));
  };
  EXPECT_EQ(name(0, 0, 128), "block.a");
  EXPECT_EQ(name(0, 99, 30), "block.a or block.b");
  EXPECT_EQ(name(0, 100, 28), "block");
  EXPECT_EQ(name(1, 0, 72), "block.b");
  EXPECT_EQ(name(1, 72, 128), "block");
}

TEST(ElementNames, AreNotThoseOfTheNextShard) {
  const ModelLayout model{
      .units = {{.name = "block", .parameters = {{"a", ElementCount(256)}, {"b", ElementCount(100)}}}},
      .groups = {{}}};
  const FlatLayout flat = ShardLayout(model, 2).flats()[0];  // a is the first shard
  EXPECT_EQ((ElementNames{&model, 0}.of(flat, ElementCount(200), ElementCount(4096))), "block.a");
}

}  // namespace
}  // namespace penstock::zero
