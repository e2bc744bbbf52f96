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

/// The access pattern of a DiskBenchmark: reads; writes; reads and writes alternately; or swap, the pattern of an
/// optimizer step: reads a transfer, calls Options::between and writes it back to the same place.
enum class BenchmarkPattern : std::uint8_t { read, write, mixed, swap };

/// "read", "write", "mixed", "swap".
[[nodiscard]] std::string_view to_string(BenchmarkPattern pattern);

/// The result of one run.
struct BenchmarkSample {
  tiers::FileCounters moved;     ///< by all paths together
  std::vector<ByteCount> bytes;  ///< by each path
  TimePoint elapsed{};
  TimePoint process_cpu{},
      driver_cpu{};  ///< user and system time: of the process; of the driver threads alone

  [[nodiscard]] ByteCount total() const { return moved.bytes_read + moved.bytes_written; }
  [[nodiscard]] double bytes_per_second() const;  ///< 0, if no time elapsed
};

/// Measures paths with the library's own I/O: the calling thread posts transfers, each path's driver thread owns its
/// swap file and its engine, as in a Runtime. For benchmarks, for tuning and for computing the weights of paths.
///
///     auto benchmark = DiskBenchmark::create({.paths = {{.directory = "/mnt/nvme0", .capacity = 4_GiB}}}).value();
///     auto sample = benchmark->run(BenchmarkPattern::mixed, std::chrono::seconds(5)).value();
///     print(sample.bytes_per_second());
///
/// Transfers pass through each file in ascending order and then start again. In the mixed pattern, writes follow the
/// reads at the distance of the queue depth, as in an optimizer step. Used by one thread. run() blocks.
class DiskBenchmark {
 public:
  /// The bytes of one transfer, with the path and the offset in its swap file.
  struct Piece {
    std::size_t path = 0;
    FileOffset offset;
    HostSpan bytes;
  };
  struct Options {
    std::vector<PathOptions> paths;  ///< each capacity is rounded down to whole transfers
    ByteCount transfer = {};         ///< length of one transfer, such as a tile's; 0: request_max
    std::uint32_t spare = 2;         ///< transfers per path beyond those that fill its queue
    /// Fills each piece before its first write; not set: random bytes.
    std::function<Result<void>(const Piece&)> initial = {};
    /// Called on the thread of run() with each piece that the swap pattern has read, before it is written back.
    std::function<Result<void>(const Piece&)> between = {};
  };

  /// Creates the files, allocates the memory, starts the driver threads and writes every byte once.
  ///
  /// Errors: those of Path::create, HostArena::create and Options::initial; of the first write that fails;
  /// invalid_argument, without paths, for a transfer that is no multiple of 512 B, and when a file has no room for the
  /// transfers that fill its queue twice.
  [[nodiscard]] static Result<std::unique_ptr<DiskBenchmark>> create(Options options);
  ~DiskBenchmark();

  /// Keeps every path busy for `duration`, then waits for the transfers in flight; `elapsed` includes that wait.
  ///
  /// Errors: invalid_argument, for an unknown pattern; that of the first transfer that failed; those of
  /// Options::between.
  [[nodiscard]] Result<BenchmarkSample> run(BenchmarkPattern pattern, TimePoint duration);

  [[nodiscard]] std::vector<PathReport> paths() const;
  /// The size of the buffers, their page size, and refused options.
  [[nodiscard]] std::string describe_memory() const;
  [[nodiscard]] ByteCount transfer() const;

 private:
  struct State;
  explicit DiskBenchmark(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::swap
