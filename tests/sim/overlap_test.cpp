// How much of a step hides behind its arithmetic, in virtual time: ten equal units, each of whose forward, backward,
// copies, reads and writes takes a millisecond.
#include "kit/timed_rank.hpp"

#include <gtest/gtest.h>
#include <chrono>
#include <string>

namespace penstock::zero::test {
namespace {

using std::chrono::milliseconds;

constexpr std::uint32_t units = 10;
constexpr std::uint64_t unit_elements = 1 << 17;
constexpr TimePoint unit_takes = milliseconds(1);
constexpr double unit_bytes_per_second =
    2.0 * unit_elements / 1e-3;  // of its parameters, or gradients, in bf16

double in_units(TimePoint time) {
  return std::chrono::duration<double>(time) / std::chrono::duration<double>(unit_takes);
}

TimedRank::Options machine() {
  TimedRank::Options options;
  options.config.dtype = options.config.grad_accum_dtype = DType::bf16;
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::cpu;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    options.model.units.push_back(
        {.name = std::to_string(unit), .parameters = {{"weight", ElementCount(unit_elements), 0}}});
  }
  options.speeds = {.copy_to_device = unit_bytes_per_second, .copy_to_host = unit_bytes_per_second};
  options.disk = {.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second), .latency = {}};
  return options;
}

/// Of one step, in units' milliseconds.
struct Phases {
  double forward = 0, backward = 0, step = 0;
};

class Overlap : public testing::Test {
 protected:
  /// The last of four steps: the first ones teach the runtime the order of use.
  Phases measure(const TimedRank::Options& options) {
    TimedRank rank(options);
    Phases phases;
    for (int step = 0; step < 4; ++step) {
      rank.run_dry();
      phases = measure_step(rank);
    }
    return phases;
  }

 public:
  static Phases measure_step(TimedRank& rank) {
    Engine& engine = rank.engine();
    TimePoint forward{}, backward{};
    const TimePoint began = rank.now();
    engine.begin_step({}).value();
    const auto checkpoint = [&](std::uint32_t unit, CheckpointUse use) {
      return rank.has_checkpoints() ? engine.checkpoint(unit, use, rank.stream()).value() : CheckpointLease();
    };
    for (std::uint32_t unit = 0; unit < units; ++unit) {
      const auto weights = engine.acquire(unit, rank.stream()).value();
      const CheckpointLease input = checkpoint(unit, CheckpointUse::write);
      rank.compute(unit_takes);
    }
    rank.mark(&forward);
    for (std::uint32_t unit = units; unit-- > 0;) {
      auto weights = engine.acquire(unit, rank.stream()).value();
      CheckpointLease input = checkpoint(unit, CheckpointUse::last_read);
      auto gradients = engine.gradients(unit, rank.stream()).value();
      rank.compute(unit_takes);
      input.end();
      weights.end();
      engine.reduce(std::move(gradients), rank.stream()).value();
    }
    rank.mark(&backward);
    (void)engine.step().value();
    return {in_units(forward - began), in_units(backward - forward), in_units(rank.now() - began)};
  }
};

/// Units' milliseconds of a step, when steps follow each other.
double measure_period(const TimedRank::Options& options) {
  constexpr int warmup = 3, measured = 4;
  TimedRank rank(options);
  for (int step = 0; step < warmup; ++step) Overlap::measure_step(rank);
  const TimePoint began = rank.now();
  for (int step = 0; step < measured; ++step) Overlap::measure_step(rank);
  return in_units(rank.now() - began) / measured;
}

// Nothing is updated before the norm of all gradients is known, so that the floor of a step is the longest part of the
// forward and of the update beside it, and the longest part of the backward.
TEST_F(Overlap, HidesTheUpdateBesideTheNextForward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes / 2;  // a unit has two tasks: its gradient, and its update
  EXPECT_LE(measure_period(options), 1.05 * (units + units + 3));
}

TEST_F(Overlap, HidesAnUpdateThatTakesAsLongAsTheForward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  EXPECT_LE(measure_period(options), 1.05 * (units + units + 3));
}

// The link needs 0.5 for a unit's parameters, as much for its gradient, and 0.4 for its checkpoint each way.
TEST_F(Overlap, HidesTheCopiesOfCheckpoints) {
  TimedRank::Options options = machine();
  options.speeds = {.copy_to_device = 2 * unit_bytes_per_second, .copy_to_host = 2 * unit_bytes_per_second};
  const Phases without = measure(options);
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  const Phases with = measure(options);

  EXPECT_LE(with.forward, 1.05 * without.forward);
  EXPECT_LE(with.backward, 1.05 * without.backward + 0.4);  // the copy of one
}

// The disk is as fast as the link, and reads and writes nothing else.
TEST_F(Overlap, HidesTheTransfersOfCheckpointsOnDisk) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  options.speeds = {.copy_to_device = 2 * unit_bytes_per_second, .copy_to_host = 2 * unit_bytes_per_second};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(2 * unit_bytes_per_second);
  const Phases without = measure(options);
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  const Phases with = measure(options);

  const MemoryPlan plan = plan_memory(options.config, options.model, 1, 1).value();
  EXPECT_EQ(plan.disk_checkpoints, plan.checkpoints.size * units);
  EXPECT_LE(with.forward, 1.05 * without.forward);
  EXPECT_LE(with.backward, 1.05 * without.backward + 0.4);
}

// The disk needs as long as the device for a unit's states.
TEST_F(Overlap, HidesTheTransfersOfStatesOnDisk) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  options.task_takes = unit_takes / 4;
  EXPECT_LE(measure_period(options), 1.05 * (units + units + 4));
}

// The disk needs twice as long as the device for a unit's states, and is idle in the backward but for the first tiles
// of the next update.
TEST_F(Overlap, ReadsTheFirstStatesOfAnUpdateDuringTheBackward) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 6;
  options.task_takes = unit_takes / 8;
  EXPECT_LE(measure_period(options), 1.05 * (units + units + 3));
}

/// Of ten units of eight tiles, which the device updates. The link takes a unit's states and gradients, 14 bytes an
/// element, in half of the time of its arithmetic, in each direction.
TimedRank::Options with_device_updates() {
  TimedRank::Options options = machine();
  options.config.cpu_update_ratio = 0;
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.speeds.copy_to_device = options.speeds.copy_to_host = unit_bytes_per_second * 14;
  return options;
}

/// Units' milliseconds from the verdict of the fourth step until its parameters are updated.
double measure_update(const TimedRank::Options& options) {
  TimedRank rank(options);
  for (int step = 0; step < 3; ++step) Overlap::measure_step(rank);
  rank.run_dry();
  Overlap::measure_step(rank);
  const TimePoint verdict = rank.now();
  rank.engine().finish_update().value();
  return in_units(rank.now() - verdict);
}

constexpr double half_a_unit = 0.5, tile_takes = half_a_unit / 8;

TEST_F(Overlap, HidesAnUpdateOnTheDevice) {
  EXPECT_LE(measure_period(with_device_updates()), 1.05 * (units + units + 3));
}

TEST_F(Overlap, StreamsTilesThroughTheDeviceAtTheSpeedOfTheLink) {
  EXPECT_LE(measure_update(with_device_updates()), (units * half_a_unit + 2 * tile_takes) / 0.95);
}

TEST_F(Overlap, StreamsShortFlatsThroughTheDeviceAtTheSpeedOfTheLink) {
  TimedRank::Options options = with_device_updates();
  options.config.penstock.tile_elements = {};  // a tile is a unit's whole shard
  EXPECT_LE(measure_update(options), (units * half_a_unit + 2 * half_a_unit) / 0.95);
}

// A kernel takes as long as a tile's transfer in one direction.
TEST_F(Overlap, HidesTheKernelsOfAnUpdateOnTheDevice) {
  TimedRank::Options options = with_device_updates();
  options.speeds.compute = options.speeds.copy_to_device * (12 + 12 + 2 + 2) / 14;
  EXPECT_LE(measure_update(options), (units * half_a_unit + 3 * tile_takes) / 0.95);
}

// The disk reads and writes a unit's states in the time of its arithmetic.
TEST_F(Overlap, StreamsTilesFromDiskThroughTheDeviceAtTheSpeedOfTheDisk) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  EXPECT_LE(measure_update(options), units / 0.95);
}

// Alone the CPU needs a unit's time for each unit, and the device half of it: together a third.
TEST_F(Overlap, LetsTheProcessorThatIsFreeUpdateTheNextTile) {
  TimedRank::Options options = with_device_updates();
  options.task_takes = unit_takes / 8;
  const double by_device = measure_update(options);
  options.config.cpu_update_ratio = 1;
  const double by_cpu = measure_update(options);
  options.config.penstock.update_split = UpdateSplit::automatic;
  const double by_both = measure_update(options);
  EXPECT_GE(by_cpu, units * 1.0);
  EXPECT_LE(by_both, (1 / (1 / by_cpu + 1 / by_device)) / 0.95);
}

// Alone the CPU takes twice the time of the disk, and the device one and a half.
TEST_F(Overlap, LetsBothProcessorsUpdateTilesFromDiskAtTheSpeedOfTheDisk) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  options.speeds.copy_to_device = options.speeds.copy_to_host = unit_bytes_per_second * 14 / 3;
  options.config.penstock.integrity =
      Integrity::off;  // a task that verifies would take as long as one that updates
  options.task_takes = 2 * unit_takes / 8;
  const double by_device = measure_update(options);
  options.config.cpu_update_ratio = 1;
  const double by_cpu = measure_update(options);
  options.config.penstock.update_split = UpdateSplit::automatic;
  const double by_both = measure_update(options);
  EXPECT_GE(by_device, 1.5 * units);
  EXPECT_GE(by_cpu, 2.0 * units);
  EXPECT_LE(by_both, units / 0.95);
}

TEST_F(Overlap, HidesTheCopiesOfAForwardButTheFirst) {
  EXPECT_LE(measure(machine()).forward, 1.05 * (units + 1));
}

TEST_F(Overlap, HidesTheCopiesOfABackwardButTheFirstAndTheLast) {
  EXPECT_LE(measure(machine()).backward, 1.05 * (units + 2));
}

/// Of the fourth step.
void expect_few_calls(const TimedRank::Options& options) {
  TimedRank rank(options);
  for (int step = 0; step < 3; ++step) Overlap::measure_step(rank);
  const penstock::test::DeviceCalls::Counts before = rank.calls().counts();

  Overlap::measure_step(rank);

  const penstock::test::DeviceCalls::Counts after = rank.calls().counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  const std::uint64_t copies = after.copies - before.copies;  // one for each gather and each gradient
  EXPECT_GE(copies, 2 * units);
  EXPECT_LE(after.queries - before.queries, 10 * copies);
}

TEST_F(Overlap, CallsTheDeviceSparinglyOnceItsStepsRepeat) {
  expect_few_calls(machine());
}

// Copies of five milliseconds: with a query each 50 µs there would be a hundred of each.
TEST_F(Overlap, CallsTheDeviceSparinglyWithThreads) {
  TimedRank::Options options = machine();
  options.threaded = true;
  options.speeds = {.copy_to_device = unit_bytes_per_second / 5, .copy_to_host = unit_bytes_per_second / 5};
  expect_few_calls(options);
}

TEST_F(Overlap, HidesTheReadsOfAForwardButTheFirst) {
  TimedRank::Options options = machine();
  options.config.offload_param = {.device = OffloadDevice::nvme, .nvme_paths = {"/disk"}};
  EXPECT_LE(measure(options).forward, 1.05 * (units + 2));
}

// A worker needs as long as the device for the gradient of a unit.
TEST_F(Overlap, HidesTheAccumulationOfABackward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  EXPECT_LE(measure(options).backward, 1.05 * (units + 2));
}

TEST_F(Overlap, HidesTheAccumulationOfSeveralMicroBatches) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  options.config.grad_accum_dtype = DType::fp32;
  const Phases phases = measure(options);
  EXPECT_LE(phases.forward, 1.05 * (units + 1));
  EXPECT_LE(phases.backward, 1.05 * (units + 2));
}

}  // namespace
}  // namespace penstock::zero::test
