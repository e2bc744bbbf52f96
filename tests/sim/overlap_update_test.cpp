// How fast the device, or both processors, update tiles, in virtual time.
#include "kit/timed_steps.hpp"

#include <gtest/gtest.h>
#include <algorithm>

namespace penstock::zero::test {
namespace {

/// Units' milliseconds from the verdict of the fourth step until its parameters are updated.
double measure_update(const TimedRank::Options& options) {
  TimedRank rank(options);
  for (int step = 0; step < 3; ++step) measure_step(rank);
  rank.run_dry();
  measure_step(rank);
  const TimePoint verdict = rank.now();
  rank.engine().finish_update().value();
  return in_units(rank.now() - verdict);
}

constexpr double half_a_unit = 0.5, tile_takes = half_a_unit / 8;

TEST(UpdateSpeed, StreamsTilesThroughTheDeviceAtTheSpeedOfTheLink) {
  EXPECT_LE(measure_update(with_device_updates()), (units * half_a_unit + 2 * tile_takes) / 0.95);
}

TEST(UpdateSpeed, StreamsShortFlatsThroughTheDeviceAtTheSpeedOfTheLink) {
  TimedRank::Options options = with_device_updates();
  options.config.penstock.tile_elements = {};  // a tile is a unit's whole shard
  EXPECT_LE(measure_update(options), (units * half_a_unit + 2 * half_a_unit) / 0.95);
}

// A kernel takes as long as a tile's transfer in one direction.
TEST(UpdateSpeed, HidesTheKernelsOfAnUpdateOnTheDevice) {
  TimedRank::Options options = with_device_updates();
  options.speeds.compute = options.speeds.copy_to_device * (12 + 12 + 2 + 2) / 14;
  EXPECT_LE(measure_update(options), (units * half_a_unit + 3 * tile_takes) / 0.95);
}

// The disk reads and writes a unit's states in the time of its arithmetic.
TEST(UpdateSpeed, StreamsTilesFromDiskThroughTheDeviceAtTheSpeedOfTheDisk) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = on_disk();
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  EXPECT_LE(measure_update(options), units / 0.95);
}

// Alone the CPU needs a unit's time for each unit, and the device half of it: together a third.
TEST(UpdateSpeed, LetsTheProcessorThatIsFreeUpdateTheNextTile) {
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

// The processor that gets more than it can do meanwhile is the limit.
TEST(UpdateSpeed, IsThatOfTheSlowerPartForAGivenRatio) {
  TimedRank::Options options = with_device_updates();
  options.task_takes = unit_takes / 8;
  const double by_device = measure_update(options);
  options.config.cpu_update_ratio = 1;
  const double by_cpu = measure_update(options);
  for (const float ratio : {0.125f, 0.25f, 0.375f, 0.5f, 0.75f}) {
    options.config.cpu_update_ratio = ratio;
    const double limit = std::max(ratio * by_cpu, (1 - ratio) * by_device);
    EXPECT_LE(measure_update(options), limit / 0.95) << "ratio " << ratio;
  }
}

// Alone the CPU takes twice the time of the disk, and the device one and a half.
TEST(UpdateSpeed, LetsBothProcessorsUpdateTilesFromDiskAtTheSpeedOfTheDisk) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = on_disk();
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

// The device updates the tiles that it keeps while the disk moves the others: a half of them, or a quarter.
TEST(UpdateSpeed, TakesTheDiskForTheTilesThatAreOnItOnly) {
  TimedRank::Options options = with_device_updates();
  options.config.offload_optimizer = on_disk();
  options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second) * 12;
  options.config.cpu_update_ratio = 1;
  const ByteCount states(12 * unit_elements * units);
  EXPECT_GE(measure_update(options), units * 0.9);
  options.config.penstock.device_states = states / 2;
  EXPECT_LE(measure_update(options), units / 2.0 / 0.95);
  options.config.penstock.device_states = states / 4;
  EXPECT_LE(measure_update(options), units * 0.75 / 0.95);
}

// A slow disk lets all writes pile up, and reads for the next step follow them.
TEST(UpdateSpeed, TakesAsMuchHostMemoryForTilesAsPlanned) {
  for (const std::uint32_t in_flight : {1u, 4u, 8u}) {
    TimedRank::Options options = with_device_updates();
    options.config.offload_optimizer = on_disk();
    options.config.penstock.tiles_in_flight = in_flight;
    options.disk.bytes_per_second = static_cast<std::uint64_t>(unit_bytes_per_second / 2);
    TimedRank rank(options);
    for (int step = 0; step < 4; ++step) measure_step(rank);
    const auto tiles = rank.ledger().line(tiers::Tier::host, tiers::Purpose::optimizer_tile);
    EXPECT_EQ(tiles.peak, tiles.predicted) << in_flight << " in flight";
  }
}

}  // namespace
}  // namespace penstock::zero::test
