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

TEST(DeviceCalls, CallsTheDeviceSparinglyOnceItsStepsRepeat) {
  expect_few_calls(machine());
}

// Copies of five milliseconds: with a query each 50 µs there would be a hundred of each.
TEST(DeviceCalls, CallsTheDeviceSparinglyWithThreads) {
  TimedRank::Options options = machine();
  options.threaded = true;
  options.speeds = {.copy_to_device = unit_bytes_per_second / 5, .copy_to_host = unit_bytes_per_second / 5};
  expect_few_calls(options);
}

}  // namespace
}  // namespace penstock::zero::test
