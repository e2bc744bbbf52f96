// Flats of matrices, which Muon updates as a whole: where they are, and what is refused.
#include "kit/seeded_random.hpp"
#include "zero/layout/shard_layout.hpp"
#include "zero/layout/tiles.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>

namespace penstock::zero {
namespace {

ParameterLayout matrix(std::uint64_t elements) {
  return {.name = "matrix", .count = ElementCount(elements), .shape = {1, elements}};
}

TEST(ShardLayout, DividesNoMatrix) {
  const ModelLayout model{.units = {{.name = "unit", .parameters = {matrix(100), matrix(300), matrix(200)}}},
                          .groups = {{.use_muon = true}}};
  const ShardLayout two(model, 2);
  const FlatLayout& flat = two.flats()[0];
  EXPECT_EQ(flat.shard, ElementCount(384 + 128));
  EXPECT_EQ(flat.length, ElementCount(1024));
  EXPECT_EQ(two.place({0, 1}).begin, ElementCount(0));
  EXPECT_EQ(two.place({0, 2}).begin, ElementCount(512));
  EXPECT_EQ(two.place({0, 0}).begin, ElementCount(384));
  ASSERT_EQ(flat.matrix_ranges.size(), 2u);
  const auto tiles = cut_into_tiles(flat, ElementCount(16384));
  ASSERT_EQ(tiles.size(), 2u);
  EXPECT_EQ(tiles[1].begin, ElementCount(384));
  EXPECT_EQ(tiles[1].count, ElementCount(128));
}

TEST(ShardLayout, GivesEachMatrixARangeOfOneShardOfItsOwn) {
  penstock::test::SeededRandom random(1);
  for (int i = 0; i < 300; ++i) {
    UnitLayout unit{.name = "unit"};
    for (std::uint64_t n = 1 + random.below(12); n > 0; --n)
      unit.parameters.push_back(matrix(1 + random.below(1000)));
    const auto ranks = static_cast<std::uint32_t>(1 + random.below(9));
    const ShardLayout shards({.units = {unit}, .groups = {{.use_muon = true}}}, ranks);
    const FlatLayout& flat = shards.flats()[0];
    const auto tiles = cut_into_tiles(flat, ElementCount(16384));
    EXPECT_EQ(flat.length, flat.shard * ranks);
    EXPECT_EQ(tiles.back().begin + tiles.back().count, flat.shard);
    std::set<std::uint64_t> begins;
    for (std::size_t k = 0; k < flat.slots.size(); ++k) {
      const FlatSlot& slot = flat.slots[k];
      EXPECT_TRUE(begins.insert(slot.begin.value()).second);
      EXPECT_TRUE(k == 0 || flat.slots[k - 1].begin + flat.slots[k - 1].count <= slot.begin);
      EXPECT_EQ(shards.place(slot.parameter).begin, slot.begin);
      const ElementCount in_shard(slot.begin.value() % flat.shard.value());
      EXPECT_TRUE(std::any_of(tiles.begin(), tiles.end(), [&](const TileRange& tile) {
        return tile.begin == in_shard && slot.count <= tile.count;
      }));
    }
  }
}

TEST(ModelLayout, RefusesMatricesWithoutAShape) {
  const auto refusal = [](ParameterLayout parameter, OptimizerGroup group) {
    const auto valid =
        ModelLayout{.units = {{.name = "unit", .parameters = {parameter}}}, .groups = {group}}.validate();
    return valid ? std::string() : valid.error().message();
  };
  const auto contains = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  const ParameterLayout vector{.name = "bias", .count = ElementCount(6)};
  EXPECT_TRUE(contains(refusal(vector, {.use_muon = true}), "a shape of rows and columns"));
  EXPECT_TRUE(contains(refusal(vector, {.use_muon = true}), "unit.bias"));
  EXPECT_EQ(refusal(vector, {}), "");
  ParameterLayout wrong = vector;
  wrong.shape = {2, 4};
  EXPECT_TRUE(contains(refusal(wrong, {}), "2 x 4"));
  wrong.shape = {2, 0};
  EXPECT_TRUE(contains(refusal(wrong, {}), "2 x 0"));
  wrong.shape = {std::uint64_t{1} << 32, std::uint64_t{1} << 32, 6};
  EXPECT_TRUE(contains(refusal(wrong, {}), "4294967296 x 4294967296 x 6"));
  wrong.shape = {1, 2, 3};
  EXPECT_EQ(refusal(wrong, {}), "");
  EXPECT_TRUE(contains(refusal(wrong, {.use_muon = true}), "1 x 2 x 3"));
  wrong.shape = {1, 1, 1, 1, 1, 1, 1, 2, 3};
  EXPECT_TRUE(contains(refusal(wrong, {}), "at most 8"));
  wrong = {
      .name = "long", .count = ElementCount(std::uint64_t{1} << 31), .shape = {1, std::uint64_t{1} << 31}};
  EXPECT_TRUE(contains(refusal(wrong, {.use_muon = true}), "2147483647"));
  EXPECT_EQ(refusal(wrong, {}), "");
  EXPECT_EQ(refusal(vector, {.frozen = true, .use_muon = true}), "") << "a reference model";
  EXPECT_TRUE(contains(refusal(matrix(6), {.use_muon = true, .epsilon = 1}), "groups[0].epsilon"));
}

TEST(MemoryPlan, UsesMuonOnlyWhereConfigurationAndLayoutAgree) {
  const auto refusal = [](cpu_adam::Optimizer type, bool use_muon, tiers::DeviceMemory memory,
                          bool frozen = false, std::uint32_t group = 0) {
    Config config;
    config.optimizer.type = type;
    ParameterLayout parameter = matrix(6);
    parameter.group = group;
    const ModelLayout model{.units = {{.name = "unit", .parameters = {parameter}}},
                            .groups = {{.frozen = frozen, .use_muon = use_muon}, {}}};
    const auto plan = plan_memory(config, model, 1, 1, memory);
    return plan ? std::string() : plan.error().message();
  };
  using cpu_adam::Optimizer;
  const auto host = tiers::DeviceMemory::host;
  EXPECT_EQ(refusal(Optimizer::muon, true, host), "");
  EXPECT_EQ(refusal(Optimizer::adam, false, host), "");
  EXPECT_EQ(refusal(Optimizer::muon, true, host, true), "") << "a reference model";
  EXPECT_EQ(refusal(Optimizer::muon, false, host, true), "");
  EXPECT_NE(refusal(Optimizer::muon, true, host, false, 1).find("would update nothing"), std::string::npos)
      << "no parameter is in the group";
  EXPECT_NE(refusal(Optimizer::muon, false, host).find("would update nothing"), std::string::npos);
  EXPECT_NE(refusal(Optimizer::adam, true, host).find("in an optimizer group with use_muon"),
            std::string::npos);
  EXPECT_NE(refusal(Optimizer::muon, true, tiers::DeviceMemory::separate).find("offload_optimizer.device"),
            std::string::npos);
}

}  // namespace
}  // namespace penstock::zero
