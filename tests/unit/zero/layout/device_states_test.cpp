// Optimizer states that are offloaded, of which penstock.device_states keeps a part on the device.
#include "zero/layout/engine_tensors.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <cstdint>
#include <map>
#include <string>

namespace penstock::zero {
namespace {

constexpr std::uint64_t tile_count = 32;
constexpr ByteCount tile(16'384 * 12);  // masters and moments in fp32

/// Of 32 tiles of one size.
class DeviceStates : public testing::Test {
 protected:
  DeviceStates() {
    config.stage = 3;
    config.dtype = config.grad_accum_dtype = DType::bf16;
    config.offload_param.device = OffloadDevice::cpu;
    config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/a"}};
    config.penstock.tile_elements = ElementCount(16'384);
    config.penstock.tiles_in_flight = 1;
    for (std::uint64_t i = 0; i < tile_count / 2; ++i)
      model.units.push_back({"unit" + std::to_string(i), {{"weight", ElementCount(32'768), 0}}, {}});
  }
  [[nodiscard]] MemoryPlan plan() const {
    return plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate).value();
  }
  [[nodiscard]] static std::map<TilePlace, std::uint64_t> places(const MemoryPlan& plan) {
    std::map<TilePlace, std::uint64_t> count;
    for (std::uint64_t i = 0; i < tile_count; ++i) ++count[place_of_tile(plan, i)];
    return count;
  }
  [[nodiscard]] static std::uint64_t updated_on_device(const MemoryPlan& plan) {
    std::uint64_t count = 0;
    for (std::uint64_t i = 0; i < tile_count; ++i) count += plan.updated_on_device(i) ? 1u : 0u;
    return count;
  }

  Config config;
  ModelLayout model;
};

TEST_F(DeviceStates, DivideTilesAmongThreeTiers) {
  const MemoryPlan none = plan();
  EXPECT_EQ(places(none), (std::map<TilePlace, std::uint64_t>{{TilePlace::disk, tile_count}}));
  for (const std::uint64_t kept : {1u, 7u, 8u, 16u, 31u}) {
    config.penstock.device_states = tile * kept + tile / 2;
    config.penstock.host_budget = {};
    const MemoryPlan two = plan();
    EXPECT_EQ(places(two)[TilePlace::device], kept);
    EXPECT_EQ(two.device_tiles, tile * kept);
    const std::uint64_t at_home = kept == 8 ? 6 : (tile_count - kept) / 3;  // as in docs/estimate.md
    config.penstock.host_budget = two.host_budget + tile * at_home + tile / 2;

    const MemoryPlan three = plan();

    auto count = places(three);
    EXPECT_EQ(count[TilePlace::device], kept);
    EXPECT_EQ(count[TilePlace::home], at_home);
    EXPECT_EQ(count[TilePlace::disk], tile_count - kept - at_home);
    EXPECT_EQ(three.device_tiles, tile * kept);
    EXPECT_EQ(three.home_tiles, tile * at_home);
    EXPECT_EQ(three.disk_tiles, tile * (tile_count - kept));  // with the places of those at home
    EXPECT_EQ(three.tile_reads, tile * (tile_count - kept - at_home));
    EXPECT_EQ(three.tile_writes, three.tile_reads);
    // Of no tier is more than a tile left.
    EXPECT_LT(config.penstock.device_states - three.device_tiles, tile);
    EXPECT_LT(three.host_budget - two.host_budget - three.home_tiles, tile);
    EXPECT_EQ(three.device_minimum, none.device_minimum + three.device_tiles + three.update.device_bytes());
  }
}

TEST_F(DeviceStates, AreSpreadEvenlyAndSoAreThoseAtHome) {
  config.penstock.device_states = tile * 8;
  config.penstock.host_budget = plan().host_budget + tile * 8;
  const MemoryPlan planned = plan();
  for (std::uint64_t i = 0; i < tile_count; i += 4) {
    std::map<TilePlace, std::uint64_t> count;
    for (std::uint64_t k = i; k < i + 4; ++k) ++count[place_of_tile(planned, k)];
    EXPECT_EQ(count[TilePlace::device], 1u) << i;
    EXPECT_EQ(count[TilePlace::home], 1u) << i;
  }
}

// Each unit has a large and a small tile, as with weights that decay and biases that do not.
TEST_F(DeviceStates, AreSoManyBytesOfTilesOfTwoSizes) {
  model.groups = {{}, {.weight_decay = 0}};
  model.units.clear();
  for (std::uint64_t i = 0; i < tile_count; ++i) {
    model.units.push_back({"unit" + std::to_string(i),
                           {{"weight", ElementCount(16'384), 0}, {"bias", ElementCount(512), 1}},
                           {}});
  }
  const ByteCount states = plan().disk_tiles;
  config.cpu_update_ratio = 0.5f;
  for (const std::uint64_t percent : {5u, 25u, 50u, 75u, 90u}) {
    config.penstock.device_states = states * percent / 100;
    config.penstock.host_budget = {};
    config.penstock.host_budget = plan().host_budget + tile * 8;
    const MemoryPlan planned = plan();
    EXPECT_LE(planned.device_tiles, config.penstock.device_states) << percent;
    EXPECT_GT(planned.device_tiles + tile, config.penstock.device_states) << percent;
    const ByteCount others = states - planned.device_tiles;
    EXPECT_GT(planned.home_tiles + tile, std::min(tile * 8, others)) << percent;
    // The device updates a half of all bytes, or what it keeps, to half of a tile.
    const ByteCount by_device = planned.device_tiles + planned.update.streamed,
                    wanted = std::max(states / 2, planned.device_tiles);
    EXPECT_LE(by_device, wanted + tile / 2) << percent;
    EXPECT_GE(by_device + tile / 2, wanted) << percent;
  }
}

// Only what the processor updates takes room in host memory, and a piece of the states that host code sets and reads.
TEST_F(DeviceStates, TakeNoHostMemoryButAPiece) {
  const MemoryPlan none = plan();
  config.penstock.device_states = tile;
  const ByteCount minimum = plan().host_minimum;
  EXPECT_EQ(minimum, none.host_minimum + plan().host_piece);
  for (std::uint64_t more = 0; more < 12; ++more) {
    config.penstock.host_budget = none.host_minimum + tile * more;
    config.penstock.device_states = {};
    ByteCount before = plan().tile_reads;
    config.penstock.host_budget = minimum + tile * more;
    for (std::uint64_t kept = 1; kept <= tile_count; ++kept) {
      config.penstock.device_states = tile * kept;
      const ByteCount reads = plan().tile_reads;
      EXPECT_LE(reads, before) << more << " more, " << kept << " kept";
      before = reads;
    }
  }
  config.penstock.host_budget = {};
  config.penstock.device_states = tile * 4;
  EXPECT_LE(plan().host_budget, none.host_budget + plan().host_piece);
}

TEST_F(DeviceStates, MakeHostMemorySmaller) {
  config.offload_optimizer = {.device = OffloadDevice::cpu};
  const MemoryPlan none = plan();
  config.penstock.device_states = tile * 7;

  const MemoryPlan some = plan();

  EXPECT_EQ(some.host_tiles, tile * (tile_count - 7));
  EXPECT_EQ(places(some),
            (std::map<TilePlace, std::uint64_t>{{TilePlace::device, 7}, {TilePlace::memory, 25}}));
  EXPECT_EQ(some.host_minimum, none.host_minimum - tile * 7 + some.host_piece);
  EXPECT_EQ(some.device_minimum, none.device_minimum + tile * 7 + some.update.device_bytes());
}

TEST_F(DeviceStates, OfAllTilesLeaveNothingToTheProcessorAndTheDisk) {
  config.penstock.device_states = tile * tile_count;
  const MemoryPlan all = plan();
  EXPECT_EQ(all.tiles_kept, tile_count);
  EXPECT_FALSE(all.tiles_on_disk || all.update.by_cpu);
  EXPECT_TRUE(all.disk_tiles.is_zero() && all.host_tiles.is_zero() && all.tile_reads.is_zero());
  EXPECT_FALSE(all.host_gradients.is_zero());  // these are not kept, and may be on disk
  EXPECT_LT(all.host_minimum, all.host_gradients + all.host_shards);
  // Gradient and parameter of a tile, in bf16, and the result.
  EXPECT_EQ(all.update.slot, ByteCount(16'384 * 4 + 4096));
}

TEST_F(DeviceStates, AreUpdatedOnTheDeviceWhateverTheRatioSays) {
  config.penstock.device_states = tile * 8;
  for (const auto& [ratio, expected] :
       {std::pair{1.0f, 8u}, {0.75f, 8u}, {0.69f, 10u}, {0.5f, 16u}, {0.0f, 32u}}) {
    config.cpu_update_ratio = ratio;
    const MemoryPlan planned = plan();
    EXPECT_EQ(planned.update.tiles_by_device, expected) << ratio;
    EXPECT_EQ(updated_on_device(planned), expected) << ratio;
    EXPECT_EQ(planned.update.by_cpu, ratio > 0);
    for (std::uint64_t i = 0; i < tile_count; ++i)
      EXPECT_TRUE(!planned.tile_kept(i) || planned.updated_on_device(i)) << i;
  }
  config.cpu_update_ratio = 1;
  config.penstock.update_split = UpdateSplit::automatic;
  EXPECT_TRUE(plan().update.by_cpu);
  EXPECT_EQ(updated_on_device(plan()), tile_count);
  config.penstock.device_states = tile * tile_count;
  EXPECT_FALSE(plan().update.by_cpu);
  EXPECT_EQ(plan().update.split, UpdateSplit::ratio);  // no tile is shared
}

TEST_F(DeviceStates, AreCopiedByACommit) {
  config.penstock.durable_directories = {"/no/run"};
  config.penstock.device_states = tile * 7;
  const MemoryPlan some = plan();
  config.penstock.device_states = {};
  const MemoryPlan none = plan();
  EXPECT_EQ(some.committed_copies, none.committed_copies + tile * 7);
  EXPECT_EQ(some.swap_committed + tile * 7, none.swap_committed);
}

TEST_F(DeviceStates, NeedRoomForATile) {
  config.penstock.device_states = tile - 4_KiB;
  const auto refused = plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_config);
  EXPECT_NE(refused.error().message().find("penstock.device_states"), std::string::npos)
      << refused.error().message();
  EXPECT_NE(refused.error().message().find(std::to_string(tile.value())), std::string::npos)
      << refused.error().message();
}

// Longer tiles are wanted where the device updates states from host memory, if there is room for them.
TEST_F(DeviceStates, ShortenTilesThatHaveNoRoom) {
  config.offload_optimizer = {.device = OffloadDevice::cpu};
  config.penstock.tile_elements.reset();
  for (auto& unit : model.units) unit.parameters[0].count = ElementCount(25'000'000);
  config.penstock.device_states = 1_GiB;
  EXPECT_EQ(plan().tile_elements, ElementCount(262'144 * 16));
  config.penstock.device_states = 20_MiB;
  EXPECT_EQ(plan().tile_elements, ElementCount(262'144 * 4));
}

TEST_F(DeviceStates, NameTheBudgetThatIsTooSmallForThem) {
  config.penstock.device_states = tile * 7;
  config.penstock.device_budget = plan().device_minimum - 4_KiB;
  const auto refused = plan_memory(config, model, 1, 1, tiers::DeviceMemory::separate);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small);
  EXPECT_NE(refused.error().message().find("lower penstock.device_states"), std::string::npos)
      << refused.error().message();
}

TEST_F(DeviceStates, AreNoneOfADeviceWhoseMemoryIsTheHosts) {
  config.penstock.device_states = tile * 7;
  const MemoryPlan planned = plan_memory(config, model, 1, 1, tiers::DeviceMemory::host).value();
  EXPECT_EQ(planned.tiles_kept, 0u);
  EXPECT_EQ(planned.disk_tiles, tile * tile_count);
}

}  // namespace
}  // namespace penstock::zero
