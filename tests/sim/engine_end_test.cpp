// An engine that ends in the middle of a step, in virtual time.
#include "kit/timed_steps.hpp"

#include <gtest/gtest.h>
#include <cstdint>

namespace penstock::zero::test {
namespace {

/// All checkpoints are on disk, but for those of the device.
TimedRank::Options with_checkpoints_on_disk() {
  TimedRank::Options options = machine();
  options.config.offload_param = options.config.offload_optimizer = on_disk();
  options.model.checkpoints = {.count = units, .size = ByteCount(2 * unit_elements)};
  options.config.penstock.host_budget =
      plan_memory(options.config, options.model, 1, 1, tiers::DeviceMemory::separate).value().host_minimum;
  return options;
}

void forward(TimedRank& rank) {
  rank.engine().begin_step({}).value();
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    const auto weights = rank.engine().acquire(unit, rank.stream()).value();
    const auto input = rank.engine().checkpoint(unit, CheckpointUse::write, rank.stream()).value();
    rank.compute(unit_takes);
  }
}

// A copy that is enqueued later would crash.
TEST(EngineEnd, WaitsForTheCheckpointsThatAreLoaded) {
  for (std::uint32_t read = 1; read < units; ++read) {
    TimedRank rank(with_checkpoints_on_disk());
    measure_step(rank);
    measure_step(rank);
    forward(rank);
    for (std::uint32_t unit = units; unit-- > units - read;)
      rank.engine().checkpoint(unit, CheckpointUse::last_read, rank.stream()).value().end();
  }
}

}  // namespace
}  // namespace penstock::zero::test
