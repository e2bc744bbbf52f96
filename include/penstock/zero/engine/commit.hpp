#pragma once

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// What Engine::commit() has done on this rank.
struct CommitReport {
  std::uint64_t generation = 0;  ///< the number of the commit, counted from 1
  ByteCount copied;              ///< of what is in memory only, written to files
  ByteCount kept;                ///< that was in the swap files already
  ByteCount manifest;
  TimePoint duration{};
};

/// The run that Engine::resume() has continued.
struct Resumed {
  std::uint64_t generation = 0;
  std::uint64_t step = 0;         ///< Engine::completed_steps()
  std::uint32_t ranks = 0;        ///< of the run that committed
  std::vector<std::byte> client;  ///< what the trainer has passed to commit()
  /// What was not as it should be, one line each: later generations that are damaged or incomplete.
  std::vector<std::string> notes;
};

}  // namespace penstock::zero
