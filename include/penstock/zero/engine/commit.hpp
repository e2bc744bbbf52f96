#pragma once

#include <penstock/base/time.hpp>
#include <penstock/base/units.hpp>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// What Engine::commit() has done on this rank.
struct CommitReport {
  std::uint64_t generation = 0;  ///< the number of the commit, counted from 1
  ByteCount copied;              ///< of what is in memory only, written to files
  ByteCount kept;                ///< that was in the swap files already
  ByteCount manifest;
  TimePoint duration{};  ///< from its beginning to its end
  TimePoint stall{};     ///< of that, how long calls of the engine have waited for it
  std::vector<std::string> notes =
      {};  ///< what is left to do though it is complete: files of an earlier commit
};

struct SaveOptions {
  std::span<const std::byte> client = {};  ///< as of Engine::commit()
  std::uint32_t keep =
      0;  ///< how many checkpoints of this run stay in the directory, the new one included; 0: all
};

/// What Engine::save_checkpoint() has done on this rank.
struct SavedCheckpoint {
  std::filesystem::path path;  ///< "DIR/global_step12"
  CommitReport commit;
  ByteCount cloned;                                 ///< bytes that share storage with the durable directory
  ByteCount written;                                ///< copied bytes
  std::vector<std::filesystem::path> removed = {};  ///< earlier checkpoints
  TimePoint duration{};                             ///< with the commit
};

/// The run that Engine::resume() or Engine::load_checkpoint() has continued.
struct Resumed {
  std::uint64_t generation = 0;
  std::uint64_t step = 0;         ///< Engine::completed_steps()
  std::uint32_t ranks = 0;        ///< of the run that committed
  std::vector<std::byte> client;  ///< what the trainer has passed to commit()
  /// What was not as it should be, one line each: later generations that are damaged or incomplete; optimizer groups
  /// and shapes of parameters that differ from the committed ones; values that are not finite, or become infinite in
  /// the parameters' type, with which the run has committed.
  std::vector<std::string> notes;
};

}  // namespace penstock::zero
