// What is simulated of a step is what a run in virtual time moves and takes, where its transfers overlap with its uses
// and with the next step.
#include "kit/timed_steps.hpp"
#include "zero/simulate/planned_step.hpp"
#include "zero/simulate/simulation.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::test {
namespace {

/// The disk needs `disk` milliseconds for the reads and writes of a unit's states.
TimedRank::Options with_states_on_disk(double disk, bool parameters, bool in_backward,
                                       std::uint64_t tiles_of_unit = 8) {
  TimedRank::Options options = machine();
  options.config.offload_optimizer = on_disk();
  if (parameters) options.config.offload_param = on_disk();
  options.config.gradient_clipping = 0;
  options.config.penstock.update_in_backward = in_backward;
  options.config.penstock.tile_elements = ElementCount(unit_elements / tiles_of_unit);
  options.speeds = {.copy_to_device = 4 * unit_bytes_per_second, .copy_to_host = 4 * unit_bytes_per_second};
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second * 12 / disk);
  options.task_takes = unit_takes / 4 / tiles_of_unit;  // of a tile
  return options;
}

MemoryPlan plan_of(const TimedRank::Options& options) {
  return plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value();
}

swap::ReplayedRound simulated(const TimedRank::Options& options, std::uint32_t micro_batches = 1) {
  const auto step =
      simulate::plan_step(options.config, options.model, plan_of(options), {.micro_batches = micro_batches})
          .value();
  const auto rate = static_cast<double>(options.disk.bytes_per_second);
  simulate::Machine machine;
  machine.costs.disks = {{.rates = {.read = rate, .write = rate, .mixed = rate}}};
  constexpr double phase = 1e-3 * units;
  simulate::set_use(
      machine.costs, step.trace,
      {.forward = phase * micro_batches, .backward = phase * micro_batches, .update = phase / 4});
  return simulate_steps(step.trace, machine, step.options).value().steady;
}

struct Measured {
  ByteCount read, written;  // in `steps`
  double step = 0;          // seconds of one
};
constexpr std::uint64_t steps = 8;

Measured measured(const TimedRank::Options& options, std::uint32_t micro_batches = 1) {
  TimedRank rank(options);
  for (int step = 0; step < 4; ++step) measure_step(rank, micro_batches);
  const auto before = rank.ledger().traffic();
  const TimePoint began = rank.now();
  for (std::uint64_t step = 0; step < steps; ++step) measure_step(rank, micro_batches);
  const auto after = rank.ledger().traffic();
  return {after.read - before.read, after.written - before.written,
          in_units(rank.now() - began) * 1e-3 / steps};
}

/// Host memory has room for the states of so many units more than is planned.
constexpr std::uint64_t room[] = {0, 1, 4};
constexpr double disks[] = {0.5, 1, 2, 4};

/// Expects the time of a run, and calls `expect_bytes`.
void for_each_case(bool parameters, auto&& expect_bytes) {
  for (const bool in_backward : {false, true}) {
    for (const std::uint64_t more : room) {
      for (const double disk : disks) {
        SCOPED_TRACE(testing::Message() << "in the backward " << in_backward << ", room for " << more
                                        << " units more, disk " << disk);
        TimedRank::Options options = with_states_on_disk(disk, parameters, in_backward);
        options.config.penstock.host_budget =
            plan_of(options).host_budget + ByteCount(12 * unit_elements) * more;
        const Measured run = measured(options);
        const swap::ReplayedRound step = simulated(options);
        EXPECT_NEAR(step.seconds / run.step, 1, 0.05);
        expect_bytes(more, run, step);
      }
    }
  }
}

double ratio(ByteCount a, ByteCount b) {
  return static_cast<double>(a.value()) / static_cast<double>(b.value());
}

TEST(OverlapSimulated, IsARunWithStatesOnDisk) {
  for_each_case(/*parameters=*/false, [](std::uint64_t, const Measured& run, const auto& step) {
    EXPECT_EQ(run.read, step.read * steps);
    EXPECT_EQ(run.written, step.written * steps);
  });
}

// The smallest memory with which an engine makes progress: gradients leave it too.
TEST(OverlapSimulated, IsNearARunWithTheSmallestMemory) {
  for (const bool in_backward : {false, true}) {
    for (const bool parameters : {false, true}) {
      for (const double disk : disks) {
        SCOPED_TRACE(testing::Message() << "in the backward " << in_backward << ", parameters on disk "
                                        << parameters << ", disk " << disk);
        TimedRank::Options options = with_states_on_disk(disk, parameters, in_backward);
        options.config.penstock.host_budget = plan_of(options).host_minimum;
        const Measured run = measured(options);
        const swap::ReplayedRound step = simulated(options);
        const double near = in_backward ? 0.16 : 0.1;
        EXPECT_NEAR(step.seconds / run.step, 1, 0.1);
        EXPECT_NEAR(ratio(run.read, step.read * steps), 1, near);
        EXPECT_NEAR(ratio(run.written, step.written * steps), 1, near);
      }
    }
  }
}

// There the update reads the shards too.
TEST(OverlapSimulated, IsNearARunWithTheSmallestMemoryWhereShardsAreAPartOfTheMasterWeights) {
  for (const double disk : {1.4, 2.0, 2.8, 4.0}) {
    SCOPED_TRACE(testing::Message() << "disk " << disk);
    TimedRank::Options options = with_states_on_disk(disk, /*parameters=*/true, /*in_backward=*/false);
    options.config.penstock.state_format = cpu_adam::StateFormat::split_bf16;
    options.config.penstock.host_budget = plan_of(options).host_minimum;
    const Measured run = measured(options);
    const swap::ReplayedRound step = simulated(options);
    EXPECT_NEAR(step.seconds / run.step, 1, 0.05);
    EXPECT_NEAR(ratio(run.read, step.read * steps), 1, 0.03);
    EXPECT_NEAR(ratio(run.written, step.written * steps), 1, 0.03);
  }
}

// Where shards have no home in memory and are there by turns, those that leave follow from the time of each transfer.
TEST(OverlapSimulated, IsARunWithParametersAndStatesOnDisk) {
  for_each_case(/*parameters=*/true, [](std::uint64_t more, const Measured& run, const auto& step) {
    if (more > 0) {
      EXPECT_EQ(run.read, step.read * steps);
      EXPECT_EQ(run.written, step.written * steps);
    } else {
      EXPECT_NEAR(ratio(run.read, step.read * steps), 1, 0.03);
      EXPECT_NEAR(ratio(run.written, step.written * steps), 1, 0.01);
    }
  });
}

// There tiles that were read ahead leave too, for flats whose gradients come later and that are updated first.
TEST(OverlapSimulated, IsNearARunWithParametersOnDiskUpdatedInTheBackward) {
  for (const std::uint64_t tiles_of_unit : {2u, 4u, 8u}) {
    for (const double disk : {0.8, 1.3, 1.6, 2.5, 3.0}) {
      SCOPED_TRACE(testing::Message() << tiles_of_unit << " tiles of a unit, disk " << disk);
      const TimedRank::Options options =
          with_states_on_disk(disk, /*parameters=*/true, /*in_backward=*/true, tiles_of_unit);
      const Measured run = measured(options);
      const swap::ReplayedRound step = simulated(options);
      EXPECT_NEAR(step.seconds / run.step, 1, 0.07);
      EXPECT_NEAR(ratio(step.read * steps, run.read), 1, 0.08);
      EXPECT_NEAR(ratio(step.written * steps, run.written), 1, 0.01);
    }
  }
}

// There is room for all shards and gradients, and beside them either for tiles that are read ahead or for the buffers
// of all reduced gradients. Tiles that came before the last micro-batch, or all those buffers, would evict shards.
TEST(OverlapSimulated, IsARunOfSeveralMicroBatches) {
  for (const bool in_backward : {false, true}) {
    for (const double disk : disks) {
      for (const std::uint32_t micro_batches : {2u, 16u}) {
        SCOPED_TRACE(testing::Message() << "in the backward " << in_backward << ", disk " << disk << ", "
                                        << micro_batches << " micro-batches");
        TimedRank::Options options = with_states_on_disk(disk, /*parameters=*/true, in_backward);
        options.config.penstock.tiles_in_flight = 12;
        options.config.penstock.host_budget = ByteCount(2 * unit_elements) * (3 * units);
        const Measured run = measured(options, micro_batches);
        const swap::ReplayedRound step = simulated(options, micro_batches);
        EXPECT_NEAR(step.seconds / run.step, 1, 0.07);
        if (in_backward) {
          EXPECT_NEAR(ratio(step.read * steps, run.read), 1.09, 0.1);
          EXPECT_NEAR(ratio(step.written * steps, run.written), 1, 0.01);
        } else {
          EXPECT_EQ(step.read, ByteCount(12 * unit_elements) * units) << "the states, once";
          EXPECT_EQ(run.read, step.read * steps);
          EXPECT_EQ(run.written, step.written * steps);
        }
      }
    }
  }
}

}  // namespace
}  // namespace penstock::zero::test
