// How much of a step hides behind its arithmetic, in virtual time: ten equal units, each of whose forward, backward,
// copies, reads and writes takes a millisecond.
#include "kit/timed_steps.hpp"
#include "zero/layout/step_trace.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::zero::test {
namespace {

/// 1.05 x (the floor of a step + what cannot be hidden of one unit: its update, copies each way and transfers of the
/// disk). Nothing is updated before the norm of all gradients is known, so that the floor is the longest part of the
/// forward and of the update beside it, and the longest part of the backward. Here the arithmetic is the longest.
double step_bound(double update, double copy_to_device, double copy_to_host, double disk = 0) {
  return 1.05 * (units + units + update + copy_to_device + copy_to_host + disk);
}

/// Of twenty uses in a step. Where the order turns, host memory and the device still have the units that are used next.
constexpr double most_uses = 13;

ByteCount smallest_host_budget(const TimedRank::Options& options) {
  return plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value().host_minimum;
}

TEST(Overlap, HidesTheUpdateBesideTheNextForward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes / 2;  // a unit has two tasks: its gradient, and its update
  EXPECT_LE(measure_period(options).step, step_bound(0.5, 1, 1));
}

TEST(Overlap, HidesAnUpdateThatTakesAsLongAsTheForward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  EXPECT_LE(measure_period(options).step, step_bound(1, 1, 1));
}

// The link needs 0.5 for a unit's parameters, as much for its gradient, and 0.4 for its checkpoint each way.
TEST(Overlap, HidesTheCopiesOfCheckpoints) {
  TimedRank::Options options = machine();
  options.speeds = {.copy_to_device = 2 * unit_bytes_per_second, .copy_to_host = 2 * unit_bytes_per_second};
  const Phases without = measure(options);
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  const Phases with = measure(options);

  EXPECT_LE(with.forward, 1.05 * without.forward);
  EXPECT_LE(with.backward, 1.05 * without.backward);
}

// The trainer enqueues its whole step at once, so that all copies are wanted before the first slot is free. Of ten
// checkpoints, the device keeps as many as there are slots where the order turns.
TEST(Overlap, HidesTheCopiesOfCheckpointsHoweverManyTheDeviceKeeps) {
  TimedRank::Options options = machine();
  options.config.offload_param.device = options.config.offload_optimizer.device = OffloadDevice::none;
  options.speeds = {.copy_to_device = unit_bytes_per_second, .copy_to_host = 4 * unit_bytes_per_second};
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  const auto plan = [&options] {
    return plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value();
  };
  const ByteCount smallest = plan().device_budget;
  for (const std::uint32_t more : {0u, 2u, 4u, 6u}) {
    options.config.penstock.device_budget = smallest + plan().checkpoints.size * more;
    EXPECT_EQ(plan().checkpoints.device_slots, 3 + more);
    const Phases phases = measure(options);
    EXPECT_LE(phases.forward, 1.05 * units) << more << " slots more";
    EXPECT_LE(phases.backward, 1.05 * units) << more << " slots more";
  }
}

// The disk is as fast as the link, and reads and writes nothing else.
TEST(Overlap, HidesTheTransfersOfCheckpointsOnDisk) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  options.speeds = {.copy_to_device = 2 * unit_bytes_per_second, .copy_to_host = 2 * unit_bytes_per_second};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(2 * unit_bytes_per_second);
  const Phases without = measure(options);
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  const Phases with = measure(options);

  const MemoryPlan plan = plan_memory(options.config, options.model, 1, 1).value();
  EXPECT_EQ(plan.disk_checkpoints, plan.checkpoints.size * units);
  EXPECT_LE(with.forward, 1.05 * without.forward);
  EXPECT_LE(with.backward, 1.05 * without.backward);
}

// What leaves the device, and what of that is written, are those of the derived trace, in which the first ones leave.
TEST(Overlap, MovesTheCheckpointsOfTheDerivedTrace) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2)};
  const auto plan = [&options] {
    return plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value();
  };
  const MemoryPlan smallest = plan();
  for (const std::uint32_t more : {0u, 3u, 7u}) {
    options.config.penstock.device_budget = smallest.device_budget + smallest.checkpoints.size * more;
    const auto trace = derive_trace(options.config, options.model, plan(), {.checkpoints = true}).value();
    ByteCount derived;
    for (const auto& [tensor, access] : trace.uses) {
      const auto& used = trace.tensors[tensor];
      if (used.purpose == tiers::Purpose::checkpoint && access == swap::Access::overwrite && used.on_disk)
        derived += used.size;
    }
    TimedRank rank(options);
    for (int step = 0; step < 3; ++step) measure_step(rank);
    rank.run_dry();
    const ByteCount before = rank.ledger().traffic(tiers::Purpose::checkpoint).written;
    measure_step(rank);
    rank.run_dry();
    EXPECT_EQ(rank.ledger().traffic(tiers::Purpose::checkpoint).written - before, derived) << more;
    EXPECT_EQ(derived, options.model.checkpoints.size * (units - plan().checkpoints.device_slots)) << more;
  }
}

// The disk needs as long as the device for a unit's states.
TEST(Overlap, HidesTheTransfersOfStatesOnDisk) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  options.task_takes = unit_takes / 4;
  EXPECT_LE(measure_period(options).step, step_bound(0.25, 1, 1, 1));
}

// As long for a unit's parameters and states: 2 bytes an element are read for each phase, and 12 for the update, which
// writes 14. Host memory has room for the states of one unit more than it must.
TEST(Overlap, HidesTheTransfersOfParametersAndStatesOnDisk) {
  TimedRank::Options options = machine();
  options.config.offload_param = options.config.offload_optimizer = on_disk();
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.config.penstock.host_budget = smallest_host_budget(options) + ByteCount(12 * unit_elements);
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 14;
  options.task_takes = unit_takes / 4 / 8;  // of a tile

  const Period period = measure_period(options);

  EXPECT_LE(period.step, step_bound(0.25, 1, 1, 1));
  EXPECT_GE(period.state_reads, units);
  EXPECT_GE(period.parameter_reads, units / 2);  // in the backward
  EXPECT_LE(period.parameter_reads, units) << "the update overwrites what the forward reads";
}

// The disk needs twice as long as the device for a unit's states, and is idle in the backward but for the first tiles
// of the next update.
TEST(Overlap, ReadsTheFirstStatesOfAnUpdateDuringTheBackward) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 6;
  options.task_takes = unit_takes / 8;
  EXPECT_LE(measure_period(options).step, 1.05 * (units + units + 3));
}

// The disk needs `per_unit` milliseconds for the reads of a unit's states, and as much for the writes beside them.
TimedRank::Options with_states_on_slow_disk(double per_unit) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  options.config.gradient_clipping = 0;
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.speeds = {.copy_to_device = 4 * unit_bytes_per_second, .copy_to_host = 4 * unit_bytes_per_second};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second * 12 / per_unit);
  options.task_takes = unit_takes / 4 / 8;  // of a tile
  return options;
}

// After the norm, the update is hidden by the forward alone. In the backward the disk works too: it is idle only until
// the first gradient is there, and while the forward computes the units after the last one that was updated.
TEST(Overlap, HidesAnUpdateInTheBackwardBesideBothPhases) {
  for (const double per_unit : {1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 8.0}) {
    SCOPED_TRACE(per_unit);
    TimedRank::Options options = with_states_on_slow_disk(per_unit);
    const double arithmetic = units + units, disk = per_unit * units;
    EXPECT_GE(measure_period(options).step, units + 0.95 * std::max<double>(units, disk));
    options.config.penstock.update_in_backward = true;
    EXPECT_LE(measure_period(options).step, std::max(arithmetic, disk) + 5);
  }
}

// It also reads between two updates.
TEST(Overlap, TakesAsLongAsASlowDiskForAnUpdateInTheBackward) {
  for (const double per_unit : {3.0, 4.0, 8.0}) {
    TimedRank::Options options = with_states_on_slow_disk(per_unit);
    options.config.penstock.update_in_backward = true;
    EXPECT_LE(measure_period(options).step, 1.07 * per_unit * units) << per_unit;
  }
}

TEST(Overlap, HidesAnUpdateOnTheDevice) {
  EXPECT_LE(measure_period(with_device_updates()).step, step_bound(0.5, 1.0 / 14, 1.0 / 14));
}

TEST(Overlap, HidesTheCopiesOfAForwardButTheFirst) {
  EXPECT_LE(measure(machine()).forward, 1.05 * (units + 1));
}

// Where a long kernel precedes a short one, the copy of the unit after both begins before the long one ends.
TEST(Overlap, HidesTheCopiesOfUnitsBesideLongAndShortKernels) {
  TimedRank rank(machine());
  TimePoint began{}, ended{};
  rank.engine().begin_step({}).value();
  rank.mark(&began);
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const auto weights = rank.engine().acquire(unit, rank.stream()).value();
    rank.compute(unit % 2 == 0 ? unit_takes * 19 / 10 : unit_takes / 10);
  }
  rank.mark(&ended);
  rank.finish();
  EXPECT_LE(in_units(ended - began), 1.05 * (units + 1));
}

TEST(Overlap, HidesTheCopiesOfABackwardButTheFirstAndTheLast) {
  EXPECT_LE(measure(machine()).backward, 1.05 * (units + 2));
}

// States and gradients are on the device, so that host memory has room for few units.
TEST(Overlap, HidesTheReadsOfParametersButTheFirst) {
  TimedRank::Options options = machine();
  options.config.offload_param = on_disk();
  options.config.offload_optimizer.device = OffloadDevice::none;
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.config.penstock.host_budget = smallest_host_budget(options);

  const Phases phases = measure(options);

  EXPECT_GE(phases.parameter_reads, most_uses);
  EXPECT_LE(phases.forward, 1.05 * (units + 1 + 1));
  EXPECT_LE(phases.backward, 1.05 * (units + 1 + 1));
}

// The disk reads a unit's parameters and writes its gradient in the time of its arithmetic.
TEST(Overlap, HidesTheReadsOfParametersBesideGradientsThatSpill) {
  TimedRank::Options options = machine();
  options.config.offload_param = options.config.offload_optimizer = on_disk();
  options.config.penstock.tile_elements = ElementCount(unit_elements / 8);
  options.config.penstock.host_budget = smallest_host_budget(options);
  options.disk.bytes_per_second *= 2;

  const Phases phases = measure(options);

  EXPECT_GE(phases.parameter_reads, most_uses);
  EXPECT_LE(phases.forward, 1.05 * (units + 1 + 0.5));
  EXPECT_LE(phases.backward, 1.05 * (units + 1 + 0.5 + 1));
}

// A worker needs as long as the device for the gradient of a unit.
TEST(Overlap, HidesTheAccumulationOfABackward) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  EXPECT_LE(measure(options).backward, 1.05 * (units + 2));
}

TEST(Overlap, HidesTheAccumulationOfSeveralMicroBatches) {
  TimedRank::Options options = machine();
  options.task_takes = unit_takes;
  options.config.grad_accum_dtype = DType::fp32;
  const Phases phases = measure(options);
  EXPECT_LE(phases.forward, 1.05 * (units + 1));
  EXPECT_LE(phases.backward, 1.05 * (units + 2));
}

}  // namespace
}  // namespace penstock::zero::test
