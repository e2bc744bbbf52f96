#include "zero/simulate/placement_search.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <string>

namespace penstock::zero::simulate {
namespace {

using enum OffloadDevice;
using cpu_adam::StateFormat;

constexpr double mib = 1 << 20;

/// Eight units of 2^18 parameters: 4 MiB in bf16, and 24 MiB of states in fp32.
ModelLayout eight_units() {
  ModelLayout model;
  for (int unit = 0; unit < 8; ++unit)
    model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(1 << 18), 0}}});
  return model;
}

/// One rank in bf16 with states in fp32, tiles of 2^14 elements and one directory.
estimate::SearchOptions options_with(ByteCount host, ByteCount device) {
  estimate::SearchOptions options{.base = {},
                                  .run = {},
                                  .host_budget = host,
                                  .device_budget = device,
                                  .given = {"penstock.state_format"}};
  Config& base = options.base;
  base.dtype = base.grad_accum_dtype = DType::bf16;
  base.offload_param.nvme_paths = base.offload_optimizer.nvme_paths = {"/a"};
  base.penstock.tile_elements = ElementCount(1 << 14);
  return options;
}

swap::ReplayCosts::Disk disk_of(double rate) {
  return {.rates = {.read = rate, .write = rate, .mixed = rate}, .weight = rate};
}

/// One whose operations take next to no time, for one token.
TimedRun run_on(double disk, double host_copy, double update) {
  return {.machine = {.costs = {.disks = {disk_of(disk)}},
                      .update = update,
                      .device = {.flops = 1e18, .host_copy = host_copy}},
          .shape = {},
          .tokens = 1};
}

PlacementSearch search(const estimate::SearchOptions& options, const TimedRun& run) {
  return PlacementSearch::run(options, eight_units(), run).value();
}

void keep(estimate::SearchOptions& options, OffloadDevice parameters, OffloadDevice optimizer) {
  Config& base = options.base;
  base.stage = 3;
  base.offload_param.device = parameters;
  base.offload_optimizer.device = optimizer;
  options.given.insert({"zero_optimization.stage", "zero_optimization.offload_param.device",
                        "zero_optimization.offload_optimizer.device"});
}

// A step at stage 3 moves 25.7 MiB over the disk at most, which is the least of all that fit, one at stage 2 30.6. Over
// the link it moves 2 bytes of each parameter to the device and 2 of each gradient back at stage 2, 8 MiB, and at stage
// 3 again in the backward what did not stay gathered, 12 MiB at most. At 1 MB/s the disk takes half a minute, the link
// next to nothing; at 1 GB/s the disk takes 0.03 s, and the link at 10 MB/s 0.84 and 1.26.
TEST(PlacementSearch, ChoosesBySecondsWhatBytesWouldNot) {
  const auto options = options_with(10_MiB, 14_MiB);
  const auto by_bytes = estimate::ConfigSearch::run(options, eight_units()).value();
  EXPECT_EQ(by_bytes.candidates[*by_bytes.best].config.stage, 3u);

  const PlacementSearch slow = search(options, run_on(1e6, 1e10, 1e9)),
                        fast = search(options, run_on(1e9, 1e7, 1e9));

  EXPECT_EQ(slow.chosen.config.stage, 3u) << slow.chosen.name;
  EXPECT_GT(slow.chosen.seconds, 20);
  EXPECT_EQ(fast.chosen.config.stage, 2u) << fast.chosen.name;
  // Beside the next forward the link has the gradients and parameters of the states that stay on the device.
  EXPECT_NEAR(fast.chosen.seconds, 8 * mib / 1e7 + fast.timed.model.work.update.copied.seconds(), 0.01);
  const auto third = std::find_if(fast.fitting.begin(), fast.fitting.end(),
                                  [](const auto& one) { return one.config.stage == 3; });
  EXPECT_GT(third->seconds, 1.2 * fast.chosen.seconds);
}

TEST(PlacementSearch, KeepsStatesOffASlowDisk) {
  const auto tier = [](double disk) {
    return search(options_with(16_MiB, 14_MiB), run_on(disk, 1e10, 1e8))
        .chosen.config.offload_optimizer.device;
  };
  EXPECT_EQ(tier(1e6), cpu);
  EXPECT_EQ(tier(1e11), nvme);
}

// 24 MiB of states, which the processors update in 1 s. With a gradient and a parameter 14 bytes of each of 2^21
// parameters go to the device, and come back: 28 MiB.
TEST(PlacementSearch, LetsTheProcessorUpdateThatIsFaster) {
  auto options = options_with({}, {});
  keep(options, cpu, cpu);
  const auto on_device = [&](double link) {
    const PlacementSearch found = search(options, run_on(1e9, link, 24 * mib));
    EXPECT_EQ(found.chosen.config.offload_optimizer.device, cpu);
    return found;
  };
  const PlacementSearch fast = on_device(1e12), slow = on_device(mib / 10);
  EXPECT_TRUE(fast.chosen.config.cpu_update_ratio == 0 ||
              fast.chosen.config.penstock.update_split == UpdateSplit::automatic)
      << fast.chosen.name;
  EXPECT_LT(fast.chosen.seconds, 0.02);
  EXPECT_EQ(slow.chosen.config.cpu_update_ratio, 1);
  EXPECT_EQ(slow.chosen.config.penstock.update_split, UpdateSplit::ratio);

  options.given.insert("zero_optimization.offload_optimizer.ratio");
  const PlacementSearch kept = on_device(1e12);
  EXPECT_EQ(kept.chosen.config.cpu_update_ratio, 1);
  EXPECT_EQ(kept.chosen.config.penstock.update_split, UpdateSplit::ratio);
  EXPECT_NEAR(kept.chosen.seconds, 1, 0.05);
}

// A device that updates in its memory in no time leaves the processors what has no room there.
TEST(PlacementSearch, KeepsStatesOnTheDeviceWhereThatIsFaster) {
  auto options = options_with({}, 20_MiB);
  keep(options, cpu, cpu);
  options.given.insert("zero_optimization.offload_optimizer.ratio");
  const PlacementSearch found = search(options, run_on(1e9, 1e10, 24 * mib));
  const ByteCount states = found.chosen.config.penstock.device_states;
  EXPECT_EQ(states, most_device_states(found.chosen.config, options, eight_units())) << found.chosen.name;
  const double left = 1 - static_cast<double>(states.value()) / (24 * mib);
  EXPECT_LT(left, 0.5);
  EXPECT_NEAR(found.chosen.seconds, left, 0.05);
}

// By bytes only states on a disk are kept on the device, as they move less then: the processors, which limit the step,
// have less to do. The same states in host memory are as fast without a disk.
TEST(PlacementSearch, KeepsStatesOnTheDeviceBeforeItTakesADisk) {
  const PlacementSearch found = search(options_with({}, 20_MiB), run_on(1e12, 1e10, 24 * mib));
  EXPECT_EQ(found.chosen.config.offload_optimizer.device, cpu) << found.chosen.name;
  EXPECT_GT(found.chosen.config.penstock.device_states, 4_MiB) << found.chosen.name;
}

// With one tile ahead one of four disks reads at a time.
TEST(PlacementSearch, ReadsMoreAheadWhereThatHelps) {
  auto options = options_with(14_MiB, {});
  keep(options, cpu, nvme);
  options.given.insert("penstock.tile_elements");
  options.base.penstock.tiles_in_flight = 1;
  options.base.offload_param.nvme_paths =
      options.base.offload_optimizer.nvme_paths = {"/a", "/b", "/c", "/d"};
  TimedRun run = run_on(1e7, 1e10, 1e9);
  run.machine.costs.disks.resize(4, disk_of(1e7));

  const PlacementSearch deeper = search(options, run);

  EXPECT_GT(deeper.chosen.config.penstock.tiles_in_flight, 1u) << deeper.chosen.name;
  EXPECT_LT(deeper.chosen.seconds, 0.98 * deeper.fitting[0].seconds);
  for (const PlacementSearch::Tried& one : deeper.tried)
    EXPECT_FALSE(one.setting.starts_with("tile_elements")) << "is given";
  options.given.insert("penstock.tiles_in_flight");
  EXPECT_EQ(search(options, run).chosen.config.penstock.tiles_in_flight, 1u);
}

TEST(PlacementSearch, DividesTheBytesAsTheDisksAreFast) {
  auto options = options_with(14_MiB, {});
  keep(options, cpu, nvme);
  options.base.offload_param.nvme_paths = options.base.offload_optimizer.nvme_paths = {"/a", "/b"};
  TimedRun run = run_on(4e7, 1e10, 1e9);
  run.machine.costs.disks.push_back(disk_of(1e7));
  const PlacementSearch found = search(options, run);
  EXPECT_EQ(found.chosen.config.penstock.path_weights, (std::vector<double>{4, 1}));
  ASSERT_EQ(found.chosen.config.penstock.path_limits.size(), 2u);
  EXPECT_EQ(found.chosen.config.penstock.path_limits[0], 4 * found.chosen.config.penstock.path_limits[1]);
  const auto& disks = found.timed.model.simulation.steady.disks;
  const double first = static_cast<double>((disks[0].read + disks[0].written).value()),
               second = static_cast<double>((disks[1].read + disks[1].written).value());
  EXPECT_NEAR(first / second, 4, 1);  // of whole tensors

  run.machine.costs.disks[0].weight = run.machine.costs.disks[1].weight = 3;  // the user's, of other rates
  EXPECT_EQ(search(options, run).chosen.config.penstock.path_weights, (std::vector<double>{1, 1}));
  EXPECT_EQ(search(options, run).chosen.config.penstock.path_limits, (std::vector<double>{4e7, 1e7}));
  run.machine.costs.disks = {disk_of(4e7), disk_of(4e7)};
  EXPECT_TRUE(search(options, run).chosen.config.penstock.path_weights.empty());
  run.machine.costs.disks[1] = disk_of(1e7);
  options.base.penstock.path_weights = {1, 1};
  options.given.insert("penstock.path_weights");
  const PlacementSearch equal = search(options, run);
  EXPECT_EQ(equal.chosen.config.penstock.path_weights, (std::vector<double>{1, 1}));
  EXPECT_GT(equal.chosen.seconds, 1.5 * found.chosen.seconds) << "the slow disk has half of the bytes";
}

TEST(PlacementSearch, KeepsWhatTheBaseWasGiven) {
  auto options = options_with(40_MiB, 14_MiB);
  options.given.clear();
  keep(options, nvme, nvme);
  options.given.insert("penstock.state_format");
  options.base.penstock.state_format = StateFormat::split;
  options.given.insert("penstock.device_states");
  for (const double disk : {1e6, 1e11}) {
    const PlacementSearch found = search(options, run_on(disk, 1e10, 1e9));
    for (const auto& one : found.fitting) {
      EXPECT_EQ(one.config.stage, 3u);
      EXPECT_EQ(one.config.offload_param.device, nvme);
      EXPECT_EQ(one.config.offload_optimizer.device, nvme);
      EXPECT_EQ(one.config.penstock.state_format, StateFormat::split);
    }
    EXPECT_TRUE(found.chosen.config.penstock.device_states.is_zero()) << found.chosen.name;
  }
}

// Operations take all of the time with every candidate, so that the order of bytes decides, and no setting is tried.
TEST(PlacementSearch, TakesTheOrderOfBytesWhereTimesAreAlike) {
  const auto options = options_with(40_MiB, 14_MiB);
  const auto by_bytes = estimate::ConfigSearch::run(options, eight_units()).value();
  TimedRun run = run_on(1e10, 1e12, 1e11);
  run.machine.device.flops = 1e7;
  const PlacementSearch found = search(options, run);
  EXPECT_EQ(found.chosen.name, by_bytes.candidates[*by_bytes.best].name());
  EXPECT_TRUE(found.tried.empty());
  EXPECT_NEAR(found.chosen.seconds, 6 * 2 * mib / 1e7, 0.01);
}

// Of 8 blocks of 4 MiB of activations and inputs of 1 MiB, the engine's 28 MiB leave 20 MiB: 4 blocks that keep theirs
// and 4 inputs. In the backward half of the forward is repeated.
TEST(PlacementSearch, TakesMemoryOfTheEngineForBlocksThatRepeatNothing) {
  auto options = options_with({}, 28_MiB);
  keep(options, cpu, cpu);
  TimedRun run = run_on(1e9, 1e12, 1e11);
  run.machine.device.flops = 1e7;
  run.activations = {
      .sizes = {.block = 4_MiB, .checkpoint = 1_MiB, .head = {}}, .blocks = 8, .memory = 48_MiB};
  const auto forward = [](double of) { return 2 * 2 * mib / 1e7 * of; };

  const PlacementSearch found = search(options, run);

  EXPECT_EQ(found.fitting[0].recomputation->kept, 4u);
  EXPECT_NEAR(found.fitting[0].seconds, forward(3.5), 0.01);
  EXPECT_EQ(found.chosen.recomputation->kept, 8u);
  EXPECT_NEAR(found.chosen.seconds, forward(3), 0.01);
  EXPECT_LT(found.chosen.config.penstock.device_budget, 28_MiB) << found.chosen.name;
  options.given.insert("penstock.device_budget");
  EXPECT_EQ(search(options, run).chosen.recomputation->kept, 4u);
  run.activations->memory = 30_MiB;
  EXPECT_EQ(PlacementSearch::run(options, eight_units(), run).error().code(), ErrorCode::budget_too_small);
}

TEST(PlacementSearch, LeavesOutWhatHasNoRoomOnTheMachine) {
  const auto options = options_with({}, {});
  TimedRun run = run_on(1e9, 1e12, 1e9);
  run.machine.device.memory = 16_MiB;
  const PlacementSearch found = search(options, run);
  for (const auto& one : found.fitting) EXPECT_NE(one.config.offload_optimizer.device, none) << one.name;
  run.machine.memory = 1_MiB;
  run.machine.device.memory = 1_MiB;
  EXPECT_EQ(PlacementSearch::run(options, eight_units(), run).error().code(), ErrorCode::budget_too_small);
}

TEST(PlacementSearch, SaysWhatIsMissing) {
  const auto error = [](const estimate::SearchOptions& options, const TimedRun& run) {
    const auto found = PlacementSearch::run(options, eight_units(), run);
    return found ? Error(ErrorCode::would_block, "nothing is missing") : found.error();
  };
  const auto options = options_with(40_MiB, 14_MiB);
  TimedRun run = run_on(1e9, 1e10, 0);
  EXPECT_EQ(error(options, run).fields().object, "update");
  run = run_on(1e9, 1e10, 1e9);
  run.machine.device.flops = 0;
  EXPECT_EQ(error(options, run).fields().object, "device.flops");
  run = run_on(1e9, 1e10, 1e9);
  run.machine.memory = 39_MiB;
  EXPECT_EQ(error(options, run).fields().object, "--budget-host");
  run.machine.device.memory = 13_MiB;
  run.machine.memory = {};
  EXPECT_EQ(error(options, run).fields().object, "--budget-device");
  EXPECT_EQ(error(options_with(1_MiB, 1_MiB), run_on(1e9, 1e10, 1e9)).code(), ErrorCode::budget_too_small);
}

TEST(TimedRun, HasADirectoryForEachDiskAndTheRateOfItsLink) {
  TimedRun run = run_on(1e9, 1e10, 1e9);
  const auto check = [](const TimedRun& checked, const std::vector<std::filesystem::path>& directories) {
    Config config;
    config.offload_param.nvme_paths = directories;
    return check_timed_run(checked, config);
  };
  EXPECT_TRUE(check(run, {"/a"}));
  const Error two = check(run, {"/a", "/b"}).error();
  EXPECT_EQ(two.code(), ErrorCode::invalid_argument);
  EXPECT_NE(two.message().find("wanted 1 directory, got 2"), std::string::npos) << two.message();
  EXPECT_FALSE(check(run, {}));
  run.machine.device.host_copy = 0;
  EXPECT_EQ(check(run, {"/a"}).error().fields().object, "device.host_copy");
  run.shape.device_memory = tiers::DeviceMemory::host;
  EXPECT_TRUE(check(run, {"/a"}));
  run = run_on(1e9, 1e10, 1e9);
  run.machine.device.memory = 1_GiB;
  run.activations = {.sizes = {}, .blocks = 1, .memory = 2_GiB};
  EXPECT_EQ(check(run, {"/a"}).error().fields().object, "--memory-device");
}

}  // namespace
}  // namespace penstock::zero::simulate
