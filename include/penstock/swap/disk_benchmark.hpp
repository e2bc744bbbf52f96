#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/swap/runtime_options.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
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
///     auto benchmark = DiskBenchmark::create({.paths = {{.directory = "/mnt/nvme0", .capacity = 4_GiB}}}).value();
///     auto sample = benchmark->run(BenchmarkPattern::mixed, std::chrono::seconds(5)).value();
///     print(sample.bytes_per_second());
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

  [[nodiscard]] std::vector<PathReport> paths() const;
  /// Of the buffers: their size, the kind of their pages, and what was refused.
  [[nodiscard]] std::string describe_memory() const;
  [[nodiscard]] ByteCount transfer() const;

 private:
  struct State;
  explicit DiskBenchmark(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::swap
