#pragma once

#include "kit/timed_rank.hpp"

#include <chrono>
#include <cstdint>

namespace penstock::zero::test {

// Steps of ten equal units, each of whose forward, backward, copies, reads and writes takes a millisecond.
constexpr std::uint32_t units = 10;
constexpr std::uint64_t unit_elements = 1 << 17;
constexpr TimePoint unit_takes = std::chrono::milliseconds(1);
/// Of its parameters, or gradients, in bf16.
constexpr double unit_bytes_per_second = 2.0 * unit_elements / 1e-3;

/// Parameters and states are in host memory.
TimedRank::Options machine();

/// For what is on the simulated disk.
OffloadConfig on_disk();

/// A machine whose device updates all tiles, eight of each unit. The link takes a unit's states and gradients, 14 bytes
/// an element, in half of the time of its arithmetic, in each direction.
TimedRank::Options with_device_updates();

double in_units(TimePoint time);

/// Of one step.
struct Phases {
  double forward = 0, backward = 0;  ///< units' milliseconds
  double parameter_reads = 0;        ///< units whose bytes were read from disk for it
};

/// The phases are those of the last micro-batch.
Phases measure_step(TimedRank& rank, std::uint32_t micro_batches = 1);

/// The last of four steps, each of which begins when nothing is in flight. The first ones teach the runtime the order
/// of use.
Phases measure(const TimedRank::Options& options);

/// When steps follow each other.
struct Period {
  double step = 0;                              ///< units' milliseconds of one
  double parameter_reads = 0, state_reads = 0;  ///< units whose bytes it read from disk
};

Period measure_period(const TimedRank::Options& options);

}  // namespace penstock::zero::test
