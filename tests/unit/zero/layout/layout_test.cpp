#include "kit/cluster.hpp"
#include "tiers/memory/numa.hpp"
#include "zero/layout/padded.hpp"
#include "zero/layout/shard_layout.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include "kit/child_process.hpp"
#include "kit/scratch_directory.hpp"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <algorithm>
#include <fstream>

namespace penstock::zero {
namespace {

TEST(ModelLayout, RefusesAnInvalidLayout) {
  const auto refused = [](auto spoil) {
    ModelLayout model = test::small_model();
    spoil(model);
    const auto result = model.validate();
    return !result && result.error().code() == ErrorCode::invalid_argument;
  };
  EXPECT_TRUE(test::small_model().validate());
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units.clear(); }));
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units[0].parameters[0].count = {}; }));
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units[0].parameters[0].group = 2; }));
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units[2].shared.push_back({0, 9}); }));
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units[2].shared.push_back({0, 0}); }));
  EXPECT_TRUE(refused([](ModelLayout& m) { m.units[2].shared.push_back({2, 0}); }));
}

TEST(ModelLayout, RefusesMoreElementsThanItsLimits) {
  const auto model_of = [](std::size_t units, std::uint64_t count, std::size_t parameters) {
    ModelLayout model;
    for (std::size_t u = 0; u < units; ++u) {
      UnitLayout& unit = model.units.emplace_back(UnitLayout{.name = "unit" + std::to_string(u)});
      for (std::size_t p = 0; p < parameters; ++p)
        unit.parameters.push_back({"weight" + std::to_string(p), ElementCount(count), 0});
    }
    return model;
  };
  const std::uint64_t most = ModelLayout::unit_elements_max.value();
  for (const ModelLayout& model : {model_of(1, most + 1, 1), model_of(1, ~0ull, 2),
                                   model_of(1, most / 2 + 1, 2), model_of(65, most, 1)}) {
    const auto refused = model.validate();
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
    EXPECT_NE(refused.error().message().find("too many elements"), std::string::npos)
        << refused.error().message();
    EXPECT_FALSE(plan_memory({}, model, 1, 1));
  }
  const ModelLayout largest = model_of(64, most, 1);
  EXPECT_TRUE(largest.validate());
  EXPECT_TRUE(plan_memory({}, largest, 64, 8));
}

TEST(ModelLayout, WantsANameOfItsOwnForEachParameter) {
  const auto refusal = [](auto change) {
    ModelLayout model = test::small_model();
    change(model);
    const auto valid = model.validate();
    return valid ? "" : valid.error().message();
  };
  EXPECT_NE(refusal([](ModelLayout& m) { m.units[1].name.clear(); }).find("have a name"), std::string::npos);
  EXPECT_NE(refusal([](ModelLayout& m) { m.units[1].parameters[0].name.clear(); }).find("have a name"),
            std::string::npos);
  const std::string twice = refusal([](ModelLayout& m) {
    m.units[1].name = m.units[0].name;
    m.units[1].parameters[0].name = m.units[0].parameters[0].name;
  });
  EXPECT_NE(twice.find("two parameters of a model have different names: "), std::string::npos) << twice;
}

TEST(ShardLayout, PutsParametersAtMultiplesOf128AndPadsToTheRanks) {
  const ShardLayout shards(test::small_model(), 3);

  ASSERT_EQ(shards.flats().size(), 4u);  // embed; block and its bias; head's gain
  const FlatLayout& block = shards.flats()[1];
  EXPECT_EQ(block.slots[1].begin, ElementCount(40'064));
  EXPECT_EQ(block.length.value() % (3 * 128), 0u);
  EXPECT_EQ(block.shard * 3, block.length);
  ElementCount covered;
  for (const FlatSlot& slot : block.slots) covered += slot.count;
  for (const FlatSlot& gap : block.gaps()) covered += gap.count;
  EXPECT_EQ(covered, block.length);
}

TEST(ShardLayout, PlacesEachParameterInTheSlotOfItsFlat) {
  const ModelLayout model = test::small_model();
  const ShardLayout shards(model, 3);
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (std::uint32_t i = 0; i < model.units[unit].parameters.size(); ++i) {
      const ParameterId id{unit, i};

      const ShardLayout::Place place = shards.place(id);

      EXPECT_EQ(place.count, model.parameter(id).count);
      const FlatLayout& flat = shards.flats()[place.flat];
      EXPECT_EQ(flat.unit, unit);
      EXPECT_EQ(flat.group, model.parameter(id).group);
      EXPECT_EQ(std::count_if(flat.slots.begin(), flat.slots.end(),
                              [&](const FlatSlot& slot) {
                                return slot.begin == place.begin && slot.count == place.count;
                              }),
                1);
    }
  }
}

TEST(ShardLayout, LetsAUnitNeedTheFlatsOfItsSharedParameters) {
  const ShardLayout shards(test::small_model(), 2);

  EXPECT_EQ(std::vector<std::uint32_t>(shards.needed_by(2).begin(), shards.needed_by(2).end()),
            (std::vector<std::uint32_t>{3, 0}));
  EXPECT_EQ(shards.user_count(0), 2u);
  EXPECT_EQ(shards.ranks(), 2u);
}

TEST(ModelLayout, ListsTheParametersOfAUnitBeforeThoseThatItShares) {
  const ModelLayout model = test::small_model();

  EXPECT_EQ(model.parameters_of(2), (std::vector<ParameterId>{{2, 0}, {0, 0}}));
}

TEST(MemoryPlan, RefusesTwoOffloadBlocksThatNameDifferentDirectories) {
  Config config = test::RunOptions::default_config();
  config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"a"}};
  config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"b"}};

  const auto plan = plan_memory(config, test::small_model(), 1, 1);

  ASSERT_FALSE(plan);
  EXPECT_EQ(plan.error().code(), ErrorCode::invalid_config);
  config.offload_param.device = OffloadDevice::cpu;  // its path is left over: the optimizer's counts
  EXPECT_EQ(plan_memory(config, test::small_model(), 1, 1)->runtime_options(config, 0).paths[0].directory,
            "b");
}

TEST(MemoryPlan, GivesTheRuntimeTheReuseDistanceOfARanksShards) {
  Config config = test::RunOptions::default_config();
  config.dtype = DType::bf16;
  config.max_reuse_distance = ElementCount(3'000'000);
  config.penstock.eviction = swap::Eviction::reuse_distance;
  const auto options = [&](std::uint32_t ranks) {
    return plan_memory(config, test::small_model(), ranks, 1).value().runtime_options(config, 0);
  };
  EXPECT_EQ(options(1).eviction, swap::Eviction::reuse_distance);
  EXPECT_EQ(options(1).reuse_distance_max, ByteCount(6'000'000));
  EXPECT_EQ(options(3).reuse_distance_max, ByteCount(2'000'000));
  const auto plan = plan_memory(config, test::small_model(), 3, 1).value();
  const PlannedEngine engine{.config = &config, .plan = &plan};
  EXPECT_EQ(shared_runtime_options(std::span(&engine, 1), 0)->reuse_distance_max, ByteCount(2'000'000));
  config.max_reuse_distance = ElementCount(std::uint64_t{1} << 63);  // more than a ByteCount holds
  EXPECT_EQ(options(1).reuse_distance_max, ByteCount(~std::uint64_t{0}));
}

TEST(MemoryPlan, GivesARankThePathsOfItsNode) {
  Config config = test::RunOptions::default_config();
  config.offload_param =
      config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"a", "b", "c"}};
  config.penstock.host_budget = {};
  config.penstock.path_weights = {1, 2, 3};
  config.penstock.path_nodes = {0, 1, 1};
  config.penstock.rank_nodes = {1, 0, 7};
  const auto plan = plan_memory(config, test::small_model(), 3, 3);
  ASSERT_TRUE(plan) << plan.error().message();

  const auto directories = [&](std::uint32_t local_rank) {
    std::string names;
    for (const auto& path : plan->runtime_options(config, local_rank).paths) {
      names += path.directory.string().append(std::to_string(static_cast<int>(path.weight)));
    }
    return names;
  };

  EXPECT_EQ(directories(0), "b2c3");
  EXPECT_EQ(directories(1), "a1");
  EXPECT_EQ(directories(2), "a1b2c3");  // no path is of its node
}

TEST(MemoryPlan, SpreadsRanksThatMayRunAnywhereOverTheNodes) {
  const penstock::test::ScratchDirectory machine;  // two nodes whose cores are none of ours
  const std::filesystem::path nodes = machine.path() / "devices/system/node";
  for (const auto& [node, cpus] : {std::pair("node0", "1000-1003"), {"node1", "1004-1007"}, {"node2", ""}}) {
    std::filesystem::create_directories(nodes / node);
    std::ofstream(nodes / node / "cpulist") << cpus << "\n";
  }
  const auto topology = tiers::NumaTopology::read(machine.path());
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"a", "b"}};
  config.penstock.host_budget = {};
  config.penstock.path_nodes = {0, 1};
  const auto plan = plan_memory(config, test::small_model(), 4, 4).value();

  for (std::uint32_t rank = 0; rank < 4; ++rank) {
    const auto paths = plan.runtime_options(config, rank, topology).paths;
    ASSERT_EQ(paths.size(), 1u);
    EXPECT_EQ(paths[0].directory, rank < 2 ? "a" : "b") << rank;
  }
}

TEST(MemoryPlan, DoesNotWaitWithoutEndForTheNodeOfADirectory) {
  const auto topology = tiers::NumaTopology::read();
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  config.penstock.host_budget = {};
  config.penstock.io_deadline_seconds = 1;
  const auto plan = plan_memory(config, test::small_model(), 1, 1).value();

  const int paths = penstock::test::in_child([&] {
    if (!penstock::test::hang_system_call(SYS_newfstatat)) return 77;
    return static_cast<int>(plan.runtime_options(config, 0, topology).paths.size());
  });

  if (paths == 77) GTEST_SKIP() << "no seccomp to be had";
  EXPECT_EQ(paths, 1);
}

TEST(MemoryPlan, NamesTheSmallestBudgetsToTheByte) {
  Config config = test::RunOptions::default_config();
  const auto plan = plan_memory(config, test::small_model(), 1, 1).value();
  const auto refusal = [&](ByteCount PenstockConfig::*budget, ByteCount bytes) {
    Config too_small = config;
    too_small.penstock.*budget = bytes;
    const auto refused = plan_memory(too_small, test::small_model(), 1, 1);
    return refused ? "accepted" : refused.error().message();
  };

  const std::string device = refusal(&PenstockConfig::device_budget, plan.device_minimum - ByteCount(1));
  const std::string host = refusal(&PenstockConfig::host_budget, plan.host_minimum - ByteCount(1));

  const auto at_least = [](ByteCount bytes) {
    return "wanted at least " + to_string(bytes) + " (" + std::to_string(bytes.value()) + " B), got ";
  };
  EXPECT_NE(device.find(at_least(plan.device_minimum)), std::string::npos) << device;
  EXPECT_NE(host.find(at_least(plan.host_minimum)), std::string::npos) << host;
}

TEST(MemoryPlan, NamesAUnitThatHasMoreElementsThanTheConfigurationPermits) {
  const ModelLayout model = test::small_model();
  ElementCount largest;
  std::string name;
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
    ElementCount count;
    for (const ParameterId id : model.parameters_of(unit)) count += model.parameter(id).count;
    if (count > largest) largest = count, name = model.units[unit].name;
  }
  Config config = test::RunOptions::default_config();

  config.penstock.unit_elements_max = largest;
  EXPECT_TRUE(plan_memory(config, model, 1, 1));
  config.penstock.unit_elements_max = largest - ElementCount(1);
  const auto refused = plan_memory(config, model, 1, 1);

  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), ErrorCode::invalid_argument);
  for (const std::string& part : {name, to_string(largest), std::string("cut_rows()")}) {
    EXPECT_NE(refused.error().message().find(part), std::string::npos) << refused.error().message();
  }
}

TEST(MemoryPlan, RefusesListsThatAreNotOneNumberForEachPathOrRank) {
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"a", "b"}};
  config.penstock.host_budget = {};
  const auto refusal = [&] {
    const auto plan = plan_memory(config, test::small_model(), 2, 2);
    const std::string message = plan ? "accepted" : plan.error().message();
    config.penstock.path_weights.clear(), config.penstock.path_nodes.clear(),
        config.penstock.rank_nodes.clear();
    return message;
  };

  config.penstock.path_weights = {1};
  EXPECT_NE(refusal().find("penstock.path_weights"), std::string::npos);
  config.penstock.path_nodes = {1, 2, 3};
  EXPECT_NE(refusal().find("penstock.path_nodes"), std::string::npos);
  config.penstock.rank_nodes = {0};
  EXPECT_NE(refusal().find("penstock.rank_nodes"), std::string::npos);
  EXPECT_EQ(refusal(), "accepted");
}

TEST(MemoryPlan, RefusesAConfigurationThatCannotBeUsedAndNoRanks) {
  Config config = test::RunOptions::default_config();
  const auto code = [&](std::uint32_t ranks, std::uint32_t local_ranks) {
    const auto plan = plan_memory(config, test::small_model(), ranks, local_ranks);
    return plan ? std::nullopt : std::optional(plan.error().code());
  };
  EXPECT_EQ(code(2, 1), std::nullopt);
  EXPECT_EQ(code(0, 0), ErrorCode::invalid_argument);
  EXPECT_EQ(code(2, 0), ErrorCode::invalid_argument);
  EXPECT_EQ(code(2, 3), ErrorCode::invalid_argument);

  config.penstock.tiles_in_flight = 0;
  EXPECT_EQ(code(2, 1), ErrorCode::invalid_config);
}

TEST(MemoryPlan, PinsTheArenaAsTheOffloadBlocksRequire) {
  Config config = test::RunOptions::default_config();
  config.offload_optimizer = {.device = OffloadDevice::cpu, .pin_memory = false};
  const auto pinning = [&] {
    return plan_memory(config, test::small_model(), 1, 1)->runtime_options(config, 0).pinning;
  };
  EXPECT_EQ(pinning(), tiers::Pinning::none);
  config.offload_optimizer.pin_memory = true;
  EXPECT_EQ(pinning(), tiers::Pinning::preferred);
}

TEST(MemoryPlan, ReadsAheadAsFarAsAskedWhereTheBudgetIsItsOwn) {
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  config.penstock = {};
  // A GPT whose embedding is far larger than a tile.
  ModelLayout model;
  constexpr std::uint64_t width = 1024;
  model.units.push_back({"embed", {{"tokens", ElementCount(50'257 * width)}}, {}});
  for (int i = 0; i < 4; ++i)
    model.units.push_back({"block" + std::to_string(i), {{"weights", ElementCount(12 * width * width)}}, {}});
  const MemoryPlan plan = plan_memory(config, model, 1, 1).value();
  EXPECT_EQ(plan.tiles_ahead, config.penstock.tiles_in_flight);

  config.penstock.host_budget = plan.host_budget * 2;
  EXPECT_EQ(plan_memory(config, model, 1, 1)->tiles_ahead, config.penstock.tiles_in_flight);
  config.penstock.host_budget = {};
  config.penstock.host_budget = plan_memory(config, test::small_model(), 1, 1)->host_minimum;
  EXPECT_EQ(plan_memory(config, test::small_model(), 1, 1)->tiles_ahead,
            0u);  // or it would push something out
}

TEST(MemoryPlan, ReadsBetweenUpdatesInTheBackwardWhatFitsBesideAllShards) {
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  config.gradient_clipping = 0;
  config.penstock = {};
  ModelLayout model;
  for (int i = 0; i < 4; ++i)
    model.units.push_back({"block" + std::to_string(i), {{"weights", ElementCount(1 << 20)}}, {}});
  const auto plan = [&] { return plan_memory(config, model, 1, 1).value(); };
  EXPECT_EQ(plan().update.tiles_between, 0u);
  config.penstock.update_in_backward = true;
  const MemoryPlan own = plan();
  ASSERT_TRUE(own.home_shards.is_zero());
  const ByteCount tile = own.disk_tiles / own.tiles;
  const auto needed = [&](std::uint64_t tiles) {
    const ByteCount incoming = own.host_gradients / 4;  // of a unit, which comes meanwhile
    return own.host_gradients + incoming + own.disk_shards + tile * tiles;
  };
  EXPECT_GE(own.update.tiles_between, 1u);
  EXPECT_LE(needed(own.update.tiles_between + 1), own.host_budget);  // and a gap
  EXPECT_GT(needed(own.update.tiles_between + 2), own.host_budget);
  config.penstock.host_budget = own.host_minimum;
  EXPECT_EQ(plan().update.tiles_between, 0u);
  config.penstock.host_budget = {};
  config.offload_optimizer.device = OffloadDevice::cpu;
  EXPECT_EQ(plan().update.tiles_between, 0u);
}

TEST(MemoryPlan, SpreadsHostTilesEvenlyAndNoMoreThanFit) {
  Config config = test::RunOptions::default_config();
  config.offload_param = config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"."}};
  const MemoryPlan roomy = plan_memory(config, test::small_model(), 1, 1).value();
  config.penstock.host_budget = roomy.host_budget + 500_KiB;

  const MemoryPlan plan = plan_memory(config, test::small_model(), 1, 1).value();

  std::uint64_t in_host = 0;
  for (std::uint64_t tile = 0; tile < plan.tiles; ++tile) in_host += plan.in_host(tile) ? 1u : 0u;
  EXPECT_EQ(in_host, plan.tiles_in_host);
  EXPECT_GT(plan.tiles_in_host, 0u);
  EXPECT_LE(plan.host_minimum + plan.host_gradients + plan.home_tiles, plan.host_budget);
  EXPECT_GT(plan.home_tiles, 0_B);
}

TEST(MemoryPlan, KeepsTheFirstShardsInHostMemoryUpToMaxInCpu) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"/no/a"}};
  ModelLayout model;
  for (int i = 0; i < 4; ++i)
    model.units.push_back({"unit" + std::to_string(i), {{"weight", ElementCount(8192), 0}}, {}});
  const auto plan_of = [&](std::optional<std::uint64_t> max) {
    config.max_in_cpu.reset();
    if (max) config.max_in_cpu = ElementCount(*max);
    return plan_memory(config, model, 2, 2).value();
  };
  const ByteCount shard = 8_KiB;  // 4096 elements
  const MemoryPlan none = plan_of(std::nullopt);
  EXPECT_EQ(none.disk_shards, shard * 4);
  EXPECT_EQ(plan_of(4095).disk_shards, none.disk_shards);
  const MemoryPlan two = plan_of(2 * 4096);
  EXPECT_EQ(two.flats_in_host, 2u);
  EXPECT_EQ(two.disk_shards, shard * 2);
  EXPECT_EQ(two.shard_writes, shard * 2);
  EXPECT_EQ(two.shard_reads_max, shard * 4);
  EXPECT_EQ(two.swap_bytes, none.swap_bytes - shard * 2);
  EXPECT_EQ(two.host_minimum, none.host_minimum + shard * 2);
  const MemoryPlan all = plan_of(4 * 4096);
  EXPECT_FALSE(all.shards_on_disk);
  EXPECT_EQ(all.swap_bytes, 0_B);
}

TEST(MemoryPlan, CountsThePeersSlotsOfAnExactReductionBetweenGpus) {
  const ModelLayout model = test::small_model();
  const auto plan = [&](std::optional<Reduction> reduction, std::uint32_t ranks,
                        tiers::DeviceMemory memory = tiers::DeviceMemory::separate) {
    Config config{.stage = 3};
    config.offload_param.device = config.offload_optimizer.device = OffloadDevice::cpu;
    config.penstock.reduction = reduction;
    return plan_memory(config, model, ranks, 1, memory).value();
  };
  const MemoryPlan native = plan(std::nullopt, 4), exact = plan(Reduction::exact, 4);
  const ShardLayout shards(model, 4);
  ByteCount slot;
  for (const FlatLayout& flat : shards.flats())
    slot = std::max(slot, size_of(DType::fp32) * flat.shard.value());

  EXPECT_EQ(exact.exact_slots_max, slot);
  EXPECT_EQ(exact.device_collectives, round_up(slot * 3, extent_alignment));
  EXPECT_EQ(exact.device_budget, native.device_budget + exact.device_collectives);
  EXPECT_EQ(exact.device_minimum, native.device_minimum + exact.device_collectives);
  EXPECT_EQ(exact.device_flats(), native.device_flats());
  EXPECT_NE(exact.fingerprint, native.fingerprint);
  EXPECT_EQ(plan(Reduction::native, 4).device_collectives, 0_B);
  EXPECT_EQ(plan(Reduction::exact, 1).device_collectives, 0_B);
  EXPECT_EQ(plan(Reduction::exact, 4, tiers::DeviceMemory::host).device_collectives, 0_B);
}

TEST(MemoryPlan, KeepsOnASeparateDeviceWhatIsNotOffloaded) {
  Config config{.stage = 3};
  config.dtype = config.grad_accum_dtype = DType::bf16;
  const auto plan = [&](OffloadDevice parameters, OffloadDevice optimizer, tiers::DeviceMemory memory) {
    config.offload_param.device = parameters;
    config.offload_optimizer.device = optimizer;
    return plan_memory(config, test::small_model(), 2, 2, memory).value();
  };
  using enum OffloadDevice;
  constexpr auto separate = tiers::DeviceMemory::separate;
  const MemoryPlan all = plan(none, none, separate), states = plan(cpu, none, separate),
                   nothing = plan(none, cpu, separate), on_cpu = plan(none, none, tiers::DeviceMemory::host);

  EXPECT_EQ(all.host_shards + all.host_gradients + all.host_tiles, 0_B);
  EXPECT_EQ(all.device_shards, nothing.host_shards);
  EXPECT_EQ(all.device_accumulators, nothing.host_gradients);
  EXPECT_EQ(all.device_tiles, nothing.host_tiles);
  EXPECT_EQ(all.device_budget, all.device_flats() + all.device_kept());
  EXPECT_EQ(all.device_flats(), nothing.device_flats());
  EXPECT_EQ(states.device_kept(),
            all.device_kept() - all.device_shards + states.update.device_bytes() - all.update.device_bytes());
  EXPECT_EQ(states.host_shards, nothing.host_shards);
  EXPECT_FALSE(all.update.by_cpu);
  EXPECT_EQ(on_cpu.device_kept(), 0_B);

  config.penstock.device_budget = all.device_minimum - 4_KiB;
  config.offload_param.device = config.offload_optimizer.device = cpu;
  EXPECT_TRUE(plan_memory(config, test::small_model(), 2, 2, separate));
  config.offload_param.device = config.offload_optimizer.device = none;
  const auto too_small = plan_memory(config, test::small_model(), 2, 2, separate);
  ASSERT_FALSE(too_small);
  EXPECT_NE(too_small.error().message().find("set offload_optimizer.device to cpu or nvme"),
            std::string::npos)
      << too_small.error().message();
}

TEST(MemoryPlan, LetsTheCpuUpdateAllTilesOfRanksThatHaveNoOtherDevice) {
  Config config = test::RunOptions::default_config();
  config.offload_optimizer.device = OffloadDevice::cpu;
  config.cpu_update_ratio = 0;
  const auto update = [&](tiers::DeviceMemory memory) {
    return plan_memory(config, test::small_model(), 2, 2, memory).value().update;
  };

  EXPECT_EQ(update(tiers::DeviceMemory::host).device_slots, 0u);
  EXPECT_TRUE(update(tiers::DeviceMemory::host).by_cpu);
  EXPECT_GT(update(tiers::DeviceMemory::separate).device_slots, 0u);
}

}  // namespace
}  // namespace penstock::zero
