#pragma once

#include <penstock/swap/path/path.hpp>
#include <penstock/tiers/memory/host_arena.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

namespace penstock::swap {

/// What a DiskBenchmark does: reads, writes, one of each in turn; or swap, as an optimizer step does it: what was
/// read goes through Options::between and is written back where it came from.
enum class BenchmarkPattern : std::uint8_t { read, write, mixed, swap };

/// "read", "write", "mixed", "swap".
[[nodiscard]] std::string_view to_string(BenchmarkPattern pattern);

/// What one run came to.
struct BenchmarkSample {
  tiers::FileCounters moved;     ///< by all paths together
  std::vector<ByteCount> bytes;  ///< by each path
  TimePoint elapsed{};
  TimePoint process_cpu{}, driver_cpu{};  ///< user and system: of the process, of the drivers alone

  [[nodiscard]] ByteCount total() const { return moved.bytes_read + moved.bytes_written; }
  [[nodiscard]] double bytes_per_second() const;
};

/// A steady load on swap files of its own, moved as a Runtime moves its tensors: one thread posts transfers
/// and takes outcomes, each path's driver thread owns its file and its engine. For benchmarks, for tuning and
/// for weighing the paths of a run.
///
/// Transfers go through a file from end to end; in the mixed pattern, writes follow the reads at the distance
/// of the queue, as they do in an optimizer step. Owned by one thread. run() blocks.
class DiskBenchmark {
 public:
  /// The bytes of one transfer, and where they stand: in which path's file, and at which offset of it.
  struct Piece {
    std::size_t path = 0;
    FileOffset offset;
    HostSpan bytes;
  };
  struct Options {
    std::vector<PathOptions> paths;  ///< capacity: of each file, rounded down to whole transfers
    ByteCount transfer;              ///< of one transfer, such as a tile's; 0: as request_max
    std::uint32_t spare = 2;         ///< transfers at hand beside those that fill the queue
    /// Fills each piece before it is written for the first time; without it the files hold noise.
    std::function<Result<void>(const Piece&)> initial;
    /// Given what the swap pattern has read, before it is written; called on the thread that runs the load.
    std::function<Result<void>(const Piece&)> between;
  };

  /// Reserves the files, takes the memory, starts the drivers and writes every byte once.
  ///
  /// Errors: those of Path::create, HostArena::create and Options::initial; of the first write that fails;
  /// invalid_argument, when a file has no room for the transfers that fill its queue twice.
  [[nodiscard]] static Result<std::unique_ptr<DiskBenchmark>> create(Options options);
  ~DiskBenchmark();

  /// Keeps every path busy for `duration`, then lets what is in flight finish; the time of that counts too.
  ///
  /// Errors: the first transfer's that failed; those of Options::between.
  [[nodiscard]] Result<BenchmarkSample> run(BenchmarkPattern pattern, TimePoint duration);

  [[nodiscard]] std::span<const std::unique_ptr<Path>> paths() const { return paths_; }
  [[nodiscard]] const tiers::HostArena& arena() const { return arena_; }
  [[nodiscard]] ByteCount transfer() const { return transfer_; }

 private:
  /// One path's part of the load.
  struct Lane {
    ByteCount size;  // of the file, in whole transfers
    std::vector<HostSpan> slots;
    std::vector<FileOffset> read_from;  // by slot, in the swap pattern
    FileOffset next_read, next_write;
    std::uint64_t posted = 0;
    std::size_t busy = 0;
  };

  DiskBenchmark(Options options, ByteCount transfer, tiers::HostArena arena,
                std::vector<std::unique_ptr<Path>> paths);
  Result<void> prewrite();
  void post(std::size_t lane, std::size_t slot, tiers::IoOperation operation);
  void post_at(std::size_t lane, std::size_t slot, tiers::IoOperation operation, FileOffset offset);
  Result<void> go_on(std::size_t lane, const tiers::BlockFile::Finished& finished, BenchmarkPattern pattern,
                     bool more);
  [[nodiscard]] tiers::IoOperation next_operation(const Lane& lane, BenchmarkPattern pattern) const;
  void wait_for_outcomes();
  template <typename GoOn>
  Result<void> drive(const GoOn& go_on);
  [[nodiscard]] BenchmarkSample state() const;

  Options options_;
  ByteCount transfer_;
  tiers::HostArena arena_;  // outlives the paths
  std::vector<std::unique_ptr<Path>> paths_;
  std::vector<Lane> lanes_;
  std::vector<tiers::BlockFile::Finished> outcomes_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  bool notified_ = false;
};

}  // namespace penstock::swap
