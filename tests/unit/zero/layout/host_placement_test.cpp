#include <penstock/zero/layout/memory_plan.hpp>

#include <gtest/gtest.h>
#include <string>
#include <utility>

namespace penstock::zero {
namespace {

// Divided among the ranks it would be 0, which is none.
TEST(MemoryPlan, RefusesABudgetOfFewerBytesThanRanks) {
  Config config{.stage = 3};
  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/a"}};
  const ModelLayout model{.units = {{.name = "unit", .parameters = {{"weight", ElementCount(4096), 0}}}}};
  config.penstock.host_budget = 1_B;
  EXPECT_EQ(plan_memory(config, model, 2, 2).error().code(), ErrorCode::budget_too_small);
  config.penstock.host_budget = {};
  config.penstock.node_budgets = {3_B};
  config.penstock.rank_nodes = {0, 0, 0, 0};
  EXPECT_EQ(plan_memory(config, model, 4, 4).error().code(), ErrorCode::budget_too_small);
}

TEST(MemoryPlan, NamesTheLargestFlatWhereABudgetIsTooSmall) {
  Config config{.stage = 3};
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/a"}};
  ModelLayout model;
  for (const auto& [name, count] :
       {std::pair("first", 4096u), std::pair("second", 65536u), std::pair("third", 8192u)})
    model.units.push_back({.name = name, .parameters = {{"weight", ElementCount(count), 0}}});
  const auto refusal = [&](ByteCount host, ByteCount device) {
    config.penstock.host_budget = host;
    config.penstock.device_budget = device;
    const auto plan = plan_memory(config, model, 2, 2, tiers::DeviceMemory::separate);
    return plan ? std::string("planned") : plan.error().message();
  };
  EXPECT_NE(refusal(64_KiB, {})
                .find("\n  largest \"second\", with a shard of 128.0 KiB and a gradient of 128.0 KiB"
                      "; a tile of "),
            std::string::npos)
      << refusal(64_KiB, {});
  EXPECT_NE(refusal(64_KiB, {})
                .find("\n  needed  staging 1.0 MiB and resident 4.0 KiB for each of 2 ranks\n"
                      "  staging 256.0 KiB in 2 tensors that are held, and 3 times 256.0 KiB: "),
            std::string::npos)
      << refusal(64_KiB, {});
  EXPECT_NE(
      refusal({}, 64_KiB).find("\n  largest \"second\", 256.0 KiB gathered and 256.0 KiB of gradients\n"),
      std::string::npos)
      << refusal({}, 64_KiB);
}

// A rank alone on the CPU uses parameters in place: a few in host memory take less than the leases of those on disk.
TEST(MemoryPlan, AdvisesWhatNeedsLessHostMemory) {
  const ModelLayout model{.units = {{.name = "unit", .parameters = {{"weight", ElementCount(65536), 0}}}}};
  const auto advice = [&](OffloadDevice parameters, OffloadDevice states) {
    Config config{.stage = 3};
    config.offload_param = {.device = parameters, .nvme_paths = {"/no/a"}};
    config.offload_optimizer = {.device = states, .nvme_paths = {"/no/a"}};
    config.penstock.host_budget = 1_B;
    const std::string message = plan_memory(config, model, 1, 1, tiers::DeviceMemory::host).error().message();
    return message.substr(message.find("smaller tiles or units"));
  };
  using enum OffloadDevice;
  EXPECT_EQ(advice(cpu, cpu),
            "smaller tiles or units, or offload optimizer states to nvme, or offload parameters to nvme");
  EXPECT_EQ(advice(cpu, nvme), "smaller tiles or units, or offload parameters to nvme");
  Config in_memory{.stage = 3};
  in_memory.offload_param = {.device = cpu};
  in_memory.offload_optimizer = {.device = nvme, .nvme_paths = {"/no/a"}};
  const MemoryPlan plan = *plan_memory(in_memory, model, 1, 1, tiers::DeviceMemory::host);
  EXPECT_EQ(
      advice(nvme, nvme),
      "smaller tiles or units, or keep parameters in host memory, by offload_param.device cpu: the least "
      "budget is then about " +
          to_string(plan.host_minimum));
}

TEST(MemoryPlan, GivesShardsAHomeInHostMemoryBeforeTiles) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/a"}};
  ModelLayout model;
  config.penstock.tile_elements = ElementCount(16384);
  config.penstock.tiles_in_flight = 1;
  for (int i = 0; i < 32; ++i)
    model.units.push_back({"unit" + std::to_string(i), {{"weight", ElementCount(32768), 0}}, {}});
  const MemoryPlan least = plan_memory(config, model, 2, 2).value();
  const ByteCount shard = 32_KiB,
                  tile = least.disk_tiles / 32;  // 16384 elements
  const ByteCount gradients_and_ring = least.host_budget - least.host_minimum;
  const auto plan_with = [&](ByteCount more) {
    config.penstock.host_budget = (least.host_minimum + gradients_and_ring + more) * 2;
    return plan_memory(config, model, 2, 2).value();
  };
  const MemoryPlan none = plan_with(0_B);
  EXPECT_EQ(none.flats_at_home.size(), 0u);
  EXPECT_EQ(none.shard_writes, shard * 32);

  const MemoryPlan two = plan_with(shard * 2);
  EXPECT_EQ(two.flats_at_home.size(), 2u);
  EXPECT_TRUE(two.shard_at_home(1) && !two.shard_at_home(2) && two.shard_on_disk(1));
  EXPECT_EQ(two.tiles_in_host, 0u);
  EXPECT_EQ(two.home_shards, shard * 2);
  EXPECT_EQ(two.disk_shards, shard * 32);  // their places on disk stay
  EXPECT_EQ(two.swap_bytes, none.swap_bytes);
  EXPECT_EQ(two.shard_writes, shard * 30);
  EXPECT_EQ(two.shard_reads_max, shard * 60);
  EXPECT_EQ(two.host_minimum, none.host_minimum);

  const MemoryPlan all = plan_with(shard * 32 + tile);
  EXPECT_EQ(all.flats_at_home.size(), 32u);
  EXPECT_EQ(all.tiles_in_host, 1u);
  EXPECT_EQ(all.home_tiles, tile);
  EXPECT_TRUE(all.tile_at_home(31) && !all.tile_at_home(30));
  EXPECT_EQ(all.disk_tiles, tile * 32);  // their places on disk stay
  EXPECT_EQ(all.swap_bytes, none.swap_bytes);
  EXPECT_EQ(all.tile_writes, tile * 31);
  EXPECT_EQ(all.tile_reads, tile * 31);
  EXPECT_EQ(all.shard_writes + all.shard_reads_max + all.update_shard_reads_max, 0_B);

  config.penstock.eviction = swap::Eviction::reuse_distance;
  EXPECT_EQ(plan_with(shard * 32 + tile).flats_at_home.size(), 0u);
}

}  // namespace
}  // namespace penstock::zero
