#pragma once

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

namespace penstock::zero {

/// Gives host memory of a runtime to others that need it, and takes it back, as MemoryWatch says.
///
/// Used by the trainer's thread.
class MemoryFollower {
 public:
  /// `reserve`: what is left to others. `ranks`: of the machine. Empty `machine`: tiers::memory_limit().
  MemoryFollower(ByteCount reserve, std::uint32_t ranks, std::function<tiers::MemoryLimit()> machine)
      : reserve_(reserve), ranks_(ranks), machine_(std::move(machine)) {}

  /// Looks at the machine's memory, once a second. What it does, and cannot do, is a message of the runtime.
  void end_step(swap::Runtime& runtime);

 private:
  ByteCount reserve_;
  std::uint32_t ranks_;
  std::function<tiers::MemoryLimit()> machine_;
  TimePoint looked_at_{};
  ByteCount limit_;                // of the rank, beside the trainer's
  std::optional<ByteCount> used_;  // as limit_memory() has returned it
  std::string message_;            // the last one
};

}  // namespace penstock::zero
