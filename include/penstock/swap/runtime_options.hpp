#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_counters.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>
#include <penstock/tiers/tier.hpp>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::swap {

/// Which host copy is evicted when room is needed.
enum class Eviction : std::uint8_t {
  lru,      ///< the one that was used longest ago
  planned,  ///< the one that is used furthest in the future (Belady 1966); as lru until the order of use is known
};
[[nodiscard]] constexpr std::string_view to_string(Eviction eviction) {
  switch (eviction) {
    case Eviction::lru: return "lru";
    case Eviction::planned: return "planned";
  }
  return "unknown";
}

/// One directory on one drive, and how its swap file is used.
struct PathOptions {
  std::filesystem::path directory;
  ByteCount capacity;                 ///< the longest that the swap file may become
  std::optional<ByteCount> reserved;  ///< of that, allocated on the disk at create; none: all
  double weight = 1;                  ///< > 0: its share of the extents, beside the other paths' weights
  ByteCount request_max = 4_MiB;      ///< longest single request
  ByteCount in_flight_max = 16_MiB;   ///< bytes in flight at most
  TimePoint deadline = std::chrono::seconds(60);  ///< of one request; past it the path is retired
  const Clock* clock = &Clock::steady();          ///< the engine's own; outlives it
  tiers::DirectIo direct_io = tiers::DirectIo::preferred;
  tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  tiers::FileSystem* file_system = &tiers::real_file_system();  ///< outlives it
  /// Set: makes the engine for the path's file, in place of `engine`: a simulated one, for files of a simulated disk.
  std::function<Result<std::unique_ptr<tiers::IoEngine>>(const tiers::File::Properties&)> make_engine;
  /// Set: is given the engine, and what it returns takes its place: a FaultEngine over it, in an embedder's own tests.
  std::function<std::unique_ptr<tiers::IoEngine>(std::unique_ptr<tiers::IoEngine>)> decorate;
};

/// A path as it is in effect.
struct PathReport {
  std::filesystem::path directory;
  tiers::File::Properties file;  ///< the swap file's
  ByteCount capacity, reserved;
  double weight = 0;
  ByteCount request_max, in_flight_max;
  std::string engine;            ///< "io_uring", …
  std::string notes;             ///< what was probed and refused; empty when nothing was
  tiers::FileCounters counters;  ///< so far
  TimePoint driver_cpu_time{};   ///< of the path's driver thread, so far
};
/// Opens a path as a runtime would, without its driver, and closes it again. Blocks.
///
/// Errors: invalid_argument, of the weight; those of the file system and of choosing an engine.
[[nodiscard]] Result<PathReport> probe_path(const PathOptions& options);

/// What all paths together must hold on disk.
struct SwapNeed {
  ByteCount total;
  ByteCount tensor_max;  ///< the largest single tensor: each path holds whole ones
};

/// Set in RuntimeOptions, it makes the runtime start no threads: the thread that waits advances the runtime.
class IdleHandler {
 public:
  virtual ~IdleHandler() = default;
  /// Called by the thread that waits, when its runtime has nothing to do: runs other ranks, lets simulated time
  /// pass, or runs one operation of a deferred stream.
  virtual void idle() = 0;
};

struct RuntimeOptions {
  ByteCount host_budget;  ///< host memory of this rank, all of it allocated at create
  tiers::Pinning pinning = tiers::Pinning::none;
  std::vector<PathOptions> paths;  ///< may be empty: everything stays in memory
  /// Not zero: the paths' capacity and reserved bytes are computed for it, and those given do not count. Each path
  /// reserves its share by weight, or what is free there if that is less and the others have room for the rest; it
  /// may grow, unreserved, to hold all of it, for paths that fail. A path without room for one tensor is left out.
  /// Weights of zero are measured first, for a third of a second.
  SwapNeed swap_need;
  std::vector<std::string> messages;  ///< the first that take_messages() returns
  Eviction eviction = Eviction::planned;
  ByteCount lookahead = 64_MiB;  ///< loaded ahead of its use, at most
  Executor* executor = nullptr;  ///< runs checksums; null: on the thread that moves. Outlives the runtime
  IdleHandler* idle_handler = nullptr;  ///< null: threads of the runtime's own. Outlives the runtime
};

}  // namespace penstock::swap
