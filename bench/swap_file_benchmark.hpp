#pragma once

#include "swap/simulate/simulated_disks.hpp"
#include "tiers/io/block_file.hpp"
#include "tiers/memory/host_arena.hpp"

#include <penstock/swap/runtime_options.hpp>

#include <memory>
#include <vector>

namespace penstock::bench {

/// Measures the swap file of a runtime, or the file of a load, while nothing else is moved there. On a virtual disk,
/// files differ by 10 % for as long as they exist, so that the limit of a runtime is that of its own file. The bytes of
/// the file stay the same: what is written was read from the same place. (What another writes there meanwhile is lost.)
///
/// Owned by one thread. Its calls block.
class SwapFileBenchmark {
 public:
  /// Writes the file once, but for what is left after whole transfers: what has not been written yet is read without
  /// the disk.
  ///
  /// Errors: those of HostArena::create, of choose_engine and of the first transfer that fails; deadline_exceeded.
  [[nodiscard]] static Result<std::unique_ptr<SwapFileBenchmark>> create(const swap::PathReport& path,
                                                                         TimePoint io_deadline);
  ~SwapFileBenchmark();

  /// The rates of reads, and of reads and writes together, each measured for `duration`. For that of writes alone the
  /// second one is given: they are rare, such as those of a step's last tiles. Errors: that of the first transfer that
  /// fails.
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
