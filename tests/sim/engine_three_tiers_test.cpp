// Optimizer states of which a part stays on the device, and the others are in host memory, on disk, or both.
#include "kit/cluster.hpp"
#include "kit/fault_runs.hpp"
#include "kit/same_runs.hpp"
#include "kit/seeds.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::zero::test {
namespace {

/// Who updates the tiles that the device does not keep.
enum class Others : std::uint8_t { cpu, both, automatic };
constexpr Others all_others[] = {Others::cpu, Others::both, Others::automatic};

RunOptions run(const RunFormat& format, OffloadDevice states, std::uint64_t kept,
               Others others = Others::cpu) {
  RunOptions options{.model = model_of_long_units(), .device_memory = tiers::DeviceMemory::separate};
  options.config.offload_param.device = OffloadDevice::cpu;
  options.config.offload_optimizer.device = states;
  format.set(options.config);
  options.config.penstock.device_states = largest_tile(options) * kept;
  options.config.cpu_update_ratio = others == Others::both ? 0.5f : 1.0f;
  if (others == Others::automatic) options.config.penstock.update_split = UpdateSplit::automatic;
  return options;
}

class ThreeTiers : public testing::TestWithParam<RunFormat> {};

TEST_P(ThreeTiers, GiveTheBitsOfTheCpu) {
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    RunOptions by_cpu = run(GetParam(), OffloadDevice::cpu, 0);
    by_cpu.ranks = ranks;
    const RunResult expected = train(by_cpu);
    for (const Others others : all_others) {
      for (const std::uint64_t kept : {1u, 3u, 100u}) {
        SCOPED_TRACE(std::to_string(ranks) + " ranks, " + std::to_string(kept) + " kept, " +
                     std::to_string(int(others)));
        RunOptions options = run(GetParam(), OffloadDevice::cpu, kept, others);
        options.ranks = ranks;
        expect_same(train(options), expected);
      }
    }
  }
}

TEST_P(ThreeTiers, GiveTheBitsOfTheCpuInEverySimulatedOrder) {
  const RunResult expected = train(run(GetParam(), OffloadDevice::cpu, 0));
  for (const std::uint64_t seed : penstock::test::seeds(0, 24)) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    RunOptions options = run(GetParam(), OffloadDevice::nvme, 1 + seed % 5, all_others[seed % 3]);
    if (seed % 2 == 0) options.config.offload_param.device = OffloadDevice::nvme;
    options.config.penstock.host_budget = smallest_host_budget(options) + 100_KiB * seed;
    options.seed = seed;
    expect_same(train(options), expected);
  }
}

TEST_P(ThreeTiers, ContinueToTheSameBitsAfterEachFault) {
  RunOptions options = run(GetParam(), OffloadDevice::nvme, 3, Others::automatic);
  options.config.penstock.host_budget = smallest_host_budget(options) + 300_KiB;
  options.seed = 7;
  expect_to_continue_after_faults(options, 61);
}

INSTANTIATE_TEST_SUITE_P(All, ThreeTiers,
                         testing::Values(RunFormat{cpu_adam::StateFormat::fp32},
                                         RunFormat{cpu_adam::StateFormat::moments, DType::fp32},
                                         RunFormat{cpu_adam::StateFormat::split},
                                         RunFormat{cpu_adam::StateFormat::split_q8}, narrow_formats[0]),
                         [](const auto& one) { return one.param.name(); });

/// What a run of two steps moves more than one of one step.
struct Moved {
  ByteCount read, written;
};
Moved moved_in_a_step(RunOptions options) {
  options.steps = 2;
  const RunResult first = train(options);
  options.steps = 3;
  const RunResult second = train(options);
  EXPECT_FALSE(second.error) << second.error->message();
  return {second.bytes_read - first.bytes_read, second.bytes_written - first.bytes_written};
}

// Of all tiles a quarter is on the device, and of the others a part at home in host memory.
TEST(ThreeTiersOfStates, MoveTheTilesThatAreOnDiskOnly) {
  RunOptions options = run({cpu_adam::StateFormat::fp32}, OffloadDevice::nvme, 0);
  options.ranks = 1;
  options.seed = 1;
  const ByteCount tile = largest_tile(options);
  const auto plan_of = [](RunOptions of) {
    of.config.offload_param.nvme_paths = of.config.offload_optimizer.nvme_paths = {"."};
    return plan_memory(of.config, of.model, 1, 1, of.device_memory).value();
  };
  options.config.penstock.device_states = ByteCount(plan_of(options).disk_tiles.value() / 4);
  options.config.penstock.host_budget = plan_of(options).host_budget + tile * 5;
  const MemoryPlan plan = plan_of(options);
  ASSERT_GT(plan.device_tiles + tile, options.config.penstock.device_states);
  ASSERT_GT(plan.home_tiles, tile * 4);
  ASSERT_GT(plan.tile_writes, tile * 4);

  const Moved moved = moved_in_a_step(options);

  EXPECT_EQ(moved.written, plan.tile_writes);
  EXPECT_EQ(moved.read, plan.tile_reads);
}

// By the CPU as the ratio says, but for what the device keeps.
TEST(ThreeTiersOfStates, AreUpdatedOnTheDeviceThatKeepsThem) {
  const auto last_step = [](std::uint64_t kept) {
    RunOptions options = run({cpu_adam::StateFormat::fp32}, OffloadDevice::cpu, kept);
    options.ranks = 1;
    return train(options).outcomes.back();
  };
  const StepOutcome none = last_step(0), some = last_step(3);
  EXPECT_EQ(none.updated_on_device.value(), 0u);
  EXPECT_GT(some.updated_on_device.value(), 0u);
  EXPECT_LE(some.updated_on_device.value(), 3 * 16'384u);
  EXPECT_EQ(some.updated_on_device + some.updated_by_cpu, none.updated_by_cpu);
}

// Lanes of both processors record the steps of tiles. ThreadSanitizer sees it.
TEST(ThreeTiersOfStates, GiveTheBitsOfTheCpuWithThreads) {
  RunOptions options = run({cpu_adam::StateFormat::fp32}, OffloadDevice::cpu, 0);
  options.ranks = 1;
  const RunResult expected = train(options);
  for (const Others others : all_others) {
    RunOptions kept = run({cpu_adam::StateFormat::fp32}, OffloadDevice::nvme, 4, others);
    kept.ranks = 1;
    expect_same(train(kept), expected);
  }
}

}  // namespace
}  // namespace penstock::zero::test
