// How often the device is called once steps repeat.
#include "kit/timed_steps.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::test {
namespace {

/// Of the fourth step.
void expect_few_calls(const TimedRank::Options& options) {
  TimedRank rank(options);
  for (int step = 0; step < 3; ++step) measure_step(rank);
  const penstock::test::DeviceCalls::Counts before = rank.calls().counts();

  measure_step(rank);

  const penstock::test::DeviceCalls::Counts after = rank.calls().counts();
  EXPECT_EQ(after.allocations, before.allocations);
  EXPECT_EQ(after.streams, before.streams);
  EXPECT_EQ(after.events, before.events);
  EXPECT_EQ(after.synchronizations, before.synchronizations);
  const std::uint64_t copies = after.copies - before.copies;  // one for each gather and each gradient
  EXPECT_GE(copies, 2 * units);
  EXPECT_LE(after.queries - before.queries, 10 * copies);
}

/// Copies of five milliseconds: with a query each 50 µs there would be a hundred of each.
TimedRank::Options with_threads(TimedRank::Options options) {
  options.threaded = true;
  options.speeds.copy_to_device = options.speeds.copy_to_host = unit_bytes_per_second / 5;
  return options;
}

TEST(DeviceCalls, AreFewOnceStepsRepeat) {
  expect_few_calls(machine());
}

TEST(DeviceCalls, AreFewWithThreads) {
  expect_few_calls(with_threads(machine()));
}

// Not in virtual time: without a clock, each poll of a waiting move queries its event.
TEST(DeviceCalls, AreFewWithCheckpointsAndThreads) {
  TimedRank::Options options = machine();
  options.model.checkpoints = {.count = units, .size = ByteCount(unit_elements * 2 * 8 / 10)};
  expect_few_calls(with_threads(options));
}

TEST(DeviceCalls, AreFewWhereTheDeviceUpdates) {
  expect_few_calls(with_device_updates());
  expect_few_calls(with_threads(with_device_updates()));
}

TEST(DeviceCalls, AreFewWhereTheDeviceUpdatesTilesFromDisk) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = on_disk();
  expect_few_calls(options);
}

TEST(DeviceCalls, AreFewWhereBothProcessorsUpdate) {
  TimedRank::Options options = with_device_updates();
  options.config.penstock.update_split = UpdateSplit::automatic;
  options.config.cpu_update_ratio = 1;
  options.task_takes = unit_takes / 8;
  expect_few_calls(options);
}

}  // namespace
}  // namespace penstock::zero::test
