// How long the tiles are that pass through a device with memory of its own.
#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>

namespace penstock::zero {
namespace {

constexpr ElementCount shortest(262'144);  // 3 MiB of masters and moments in fp32

ModelLayout units(std::uint64_t count, ElementCount elements) {
  ModelLayout model;
  for (std::uint64_t unit = 0; unit < count; ++unit) {
    model.units.push_back({.name = "unit." + std::to_string(unit), .parameters = {{"weight", elements}}});
  }
  return model;
}
const ModelLayout large = units(40, ElementCount(25'000'000)), middle = units(10, ElementCount(10'000'000)),
                  small = units(2, ElementCount(1'000'000));

class StreamedTiles : public testing::Test {
 protected:
  StreamedTiles() {
    config.stage = 3;
    config.offload_param.device = config.offload_optimizer.device = OffloadDevice::cpu;
    config.cpu_update_ratio = 0;
  }
  [[nodiscard]] Result<MemoryPlan> plan(const ModelLayout& model) const {
    return plan_memory(config, model, 1, 1, memory);
  }
  [[nodiscard]] std::uint64_t length(const ModelLayout& model) const {
    return plan(model).value().tile_elements / shortest;
  }

  Config config;
  tiers::DeviceMemory memory = tiers::DeviceMemory::separate;
};

TEST_F(StreamedTiles, AreTheLongestOfWhichThereAre64) {
  EXPECT_EQ(length(large), 16u);
  EXPECT_EQ(length(middle), 4u);
  EXPECT_EQ(length(small), 1u);
  config.cpu_update_ratio = 1;
  config.penstock.update_split = UpdateSplit::automatic;
  EXPECT_EQ(length(large), 16u);
}

TEST_F(StreamedTiles, AreShorterWhereTheDevicesBudgetIsTooSmall) {
  const ByteCount longest = plan(large).value().device_minimum;
  config.penstock.device_budget = longest;
  EXPECT_EQ(length(large), 16u);

  config.penstock.device_budget = longest - 4_KiB;
  const MemoryPlan shorter = plan(large).value();
  EXPECT_EQ(shorter.tile_elements, shortest * 4);

  config.penstock.device_budget = shorter.device_minimum - 4_KiB;
  const MemoryPlan least = plan(large).value();
  EXPECT_EQ(least.tile_elements, shortest);

  config.penstock.device_budget = least.device_minimum - 4_KiB;
  const auto refused = plan(large);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::budget_too_small) << refused.error().message();
}

TEST_F(StreamedTiles, AreThoseOfOthersWhereTheCpuUpdatesOrTheDiskLimits) {
  config.penstock.tile_elements = shortest * 2;
  EXPECT_EQ(length(large), 2u);
  config.penstock.tile_elements.reset();

  memory = tiers::DeviceMemory::host;
  EXPECT_EQ(length(large), 1u);
  memory = tiers::DeviceMemory::separate;

  config.offload_optimizer.device = OffloadDevice::nvme;
  config.offload_optimizer.nvme_paths = {"."};
  EXPECT_EQ(length(large), 1u);
  config.offload_optimizer.device = OffloadDevice::cpu;

  config.cpu_update_ratio = 1;
  EXPECT_EQ(length(large), 1u);
}

}  // namespace
}  // namespace penstock::zero
