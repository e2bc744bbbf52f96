#pragma once

#include "swap/simulate/simulated_disks.hpp"
#include "tiers/io/block_file.hpp"
#include "tiers/memory/host_arena.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <memory>
#include <vector>

namespace penstock::bench {

/// Measures a runtime's swap file, while the runtime moves nothing. On a virtual disk, files differ by 10 % for as long
/// as they exist, so that the limit of a runtime is that of its own file. The bytes of the file stay the same: each
/// transfer reads some, and writes them back.
///
/// Owned by one thread. Its calls block.
class SwapFileBenchmark {
 public:
  /// Writes each block of the file once: blocks that a runtime has not written yet are read without the disk.
  ///
  /// Errors: those of HostArena::create, of choose_engine and of the first transfer that fails.
  [[nodiscard]] static Result<std::unique_ptr<SwapFileBenchmark>> create(const swap::PathReport& path,
                                                                         TimePoint io_deadline);
  ~SwapFileBenchmark();

  /// Two rates, each measured for `duration`. That of writes alone is not: it is given as that of both, since a step
  /// only ends with them. Errors: that of the first transfer that fails.
  [[nodiscard]] Result<swap::DiskRates> measure(TimePoint duration);

 private:
  enum class Pattern : std::uint8_t { read, rewrite };

  SwapFileBenchmark(ByteCount transfer, tiers::HostArena arena, std::unique_ptr<tiers::IoEngine> engine,
                    tiers::BlockFile file);
  /// Moves at least `least`, and for at least `duration`. Returns bytes a second.
  Result<double> run(Pattern pattern, ByteCount least, TimePoint duration);
  Result<void> read_next(std::size_t slot);
  [[nodiscard]] HostSpan buffer(std::size_t slot) const {
    return arena_.bytes().subspan(transfer_ * slot, transfer_);
  }

  ByteCount transfer_;
  tiers::HostArena arena_;  // slots
  std::unique_ptr<tiers::IoEngine> engine_;
  tiers::BlockFile file_;
  std::vector<FileOffset> places_;  // by slot
  FileOffset next_;
};

}  // namespace penstock::bench
