#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/result.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_counters.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>
#include <penstock/tiers/store/tensor.hpp>
#include <penstock/tiers/tier.hpp>

#include <array>
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

/// Which host copy the runtime evicts when a request needs room. A prefetch evicts, with all policies, the clean copy
/// whose next use is furthest away.
enum class Eviction : std::uint8_t {
  lru,  ///< the least recently used
  /// The one whose next use is furthest away (Belady 1966), but one that must be written and read again counts as if
  /// that were sooner; as lru while the uses are not known.
  planned,
  /// As lru, and a clean copy is dropped when its lease ends, or when it is stored, if its next use is
  /// RuntimeOptions::reuse_distance_max away, or not known. That is how DeepSpeed releases parameters.
  reuse_distance,
};
[[nodiscard]] constexpr std::string_view to_string(Eviction eviction) {
  switch (eviction) {
    case Eviction::lru: return "lru";
    case Eviction::planned: return "planned";
    case Eviction::reuse_distance: return "reuse_distance";
  }
  return "unknown";
}

/// What a thread of the caller waits for.
enum class StallCause : std::uint8_t {
  loads,        ///< Runtime::acquire(): for the bytes of a tensor, or for room for them
  stores,       ///< for write-behinds to be stored
  parameters,   ///< Engine::acquire(): for the gather of a unit
  gradients,    ///< for the reduction of gradients, whose memory the next ones take
  update,       ///< for the update of the last step
  checkpoints,  ///< for a checkpoint, or for room for it
  peers,        ///< for what the other ranks have at the end of a step
  device,       ///< for a stream
  other,        ///< commits, parking, the end of an engine
};
inline constexpr std::size_t stall_cause_count = 9;
[[nodiscard]] constexpr std::string_view to_string(StallCause cause) {
  constexpr std::array<std::string_view, stall_cause_count> names = {
      "loads", "stores", "parameters", "gradients", "update", "checkpoints", "peers", "device", "other"};
  const auto number = static_cast<std::size_t>(cause);
  return number < names.size() ? names[number] : "unknown";
}

/// One directory on one drive, and how its swap file is used.
struct PathOptions {
  std::filesystem::path directory;
  ByteCount capacity;  ///< maximum length of the swap file
  /// Its name in `directory`; empty: it has none, and ends with the process. An existing file is used again, with the
  /// bytes that RuntimeOptions::pinned names.
  std::string file_name = {};
  /// Bytes of it that are allocated on the disk at create; none: all.
  std::optional<ByteCount> reserved = {};
  double weight = 1;                 ///< > 0; the path gets weight / (sum of all weights) of the bytes
  ByteCount request_max = 4_MiB;     ///< maximum length of one request
  ByteCount in_flight_max = 16_MiB;  ///< maximum number of bytes in flight; one request may always be
  /// For making the swap file and its engine, for one request, and for closing the file; the path is retired when a
  /// request exceeds it.
  TimePoint deadline = std::chrono::seconds(60);
  const Clock* clock = &Clock::steady();  ///< measures the deadline of a request; lives as `file_system` does
  /// Bytes a second that it can have of the drive; 0: not known. For reports, and for Eviction::planned: where all
  /// paths have one, a byte costs the time that it takes.
  double rate_limit = 0;
  ByteCount endurance = {};  ///< for reports: bytes that it may write to the drive; 0: not known
  tiers::DirectIo direct_io = tiers::DirectIo::preferred;
  tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  /// Outlives the runtime; after deadline_exceeded, from Runtime::create() or from a request, also the calls that have
  /// not returned: until they do, or the process ends.
  tiers::FileSystem* file_system = &tiers::real_file_system();
  /// If set, creates the engine for the path's file instead of `engine`. Called, like `decorate`, on a thread for which
  /// Runtime::create() waits. What both use must outlive the engine, which calls that have not returned may keep, see
  /// `file_system`. zero::Engine::park() calls it again, for files that end with unpark(). Example: a SimEngine for
  /// files of a SimDisk.
  std::function<Result<std::unique_ptr<tiers::IoEngine>>(const tiers::File::Properties&)> make_engine = {};
  /// If set, replaces the engine by its return value. Example: a FaultEngine that wraps the engine, in a test.
  std::function<std::unique_ptr<tiers::IoEngine>(std::unique_ptr<tiers::IoEngine>)> decorate = {};
};

/// A path's effective options and its counters.
struct PathReport {
  std::filesystem::path directory;
  tiers::File::Properties file;  ///< the swap file's
  ByteCount capacity, reserved;
  double weight = 0;
  ByteCount request_max, in_flight_max;
  double rate_limit = 0;  ///< this and the next one as in PathOptions
  ByteCount endurance;
  std::string engine;            ///< "io_uring", …
  std::string notes;             ///< refused options, with reasons; empty when there are none
  tiers::FileCounters counters;  ///< so far
  TimePoint driver_cpu_time{};   ///< of the path's driver thread, so far
  TimePoint busy{};              ///< how long at least one request has been in flight, so far
};
/// Opens a path as a runtime does, but without a driver thread, and closes it again. Blocks.
///
/// Errors: invalid_argument, for the weight; those of the file system and of choosing an engine.
[[nodiscard]] Result<PathReport> probe_path(const PathOptions& options);

/// The bytes that all paths together must hold.
struct SwapNeed {
  ByteCount total;
  ByteCount tensor_max;  ///< the largest tensor; a tensor is not split between paths
};

/// Leases of one user that end only once it has room for another tensor.
struct HeldLeases {
  ByteCount bytes;
  std::uint32_t count = 0;
  ByteCount waits_for;  ///< size of that tensor, at most
};
/// A byte range of a swap file to which a generation of an earlier process refers.
struct PinnedExtent {
  tiers::Extent extent;
  std::uint64_t generation = 0;
  tiers::Purpose purpose{};
};
/// What one user takes of a runtime that it may share with others. Example of a user: a zero::Engine.
struct RuntimeUse {
  std::uint32_t owner = 0;              ///< in the keys of its tensors
  ByteCount host;                       ///< its budget
  ByteCount staging;                    ///< the part of it that no tensor keeps
  ByteCount staging_least;              ///< of that, with which it makes progress when it is alone
  ByteCount swap;                       ///< in the swap files
  std::array<HeldLeases, 3> held = {};  ///< one of these at a time
  ByteCount in_place;                   ///< leases that end at any time, each with `in_place_gap` more bytes
  ByteCount in_place_gap;
};

/// If set in RuntimeOptions, the runtime starts no threads: the thread that waits advances the transfers. For
/// simulations.
class IdleHandler {
 public:
  virtual ~IdleHandler() = default;
  /// Called by the waiting thread when no transfer can advance. It runs another rank, advances simulated time or runs
  /// one operation of a deferred stream.
  virtual void idle() = 0;
};

struct RuntimeOptions {
  ByteCount host_budget;  ///< host memory of this rank, allocated at create
  tiers::Pinning pinning = tiers::Pinning::none;
  /// NUMA nodes of the host memory: of one, it is that node's while that has memory; of several, in turns. None: the
  /// kernel chooses. What could not be there is in notes().
  std::vector<std::uint32_t> memory_nodes = {};
  std::vector<PathOptions> paths = {};  ///< empty: all tensors stay in memory
  /// If not zero, create() computes capacity and reserved bytes of the paths from it and ignores the given ones. Each
  /// path reserves its share by weight, or its free space if that is less and the other paths have room for the
  /// difference. Each capacity is the whole need, unreserved beyond the share, so that one path can take over from
  /// failed ones. A path without room for one tensor is not used. If any weight is zero, all are measured, which takes
  /// a third of a second.
  /// Example: total 9 GiB, weights 1 and 2: 3 and 6 GiB are reserved, and each capacity is 9 GiB.
  SwapNeed swap_need = {};
  /// Returned by the first take_messages(), before the runtime's own.
  std::vector<std::string> messages = {};
  /// Bytes of existing swap files that stay until Runtime::release_generation(generation).
  std::vector<PinnedExtent> pinned = {};
  Eviction eviction = Eviction::planned;
  ByteCount reuse_distance_max = {};  ///< for Eviction::reuse_distance: bytes of the uses between
  ByteCount lookahead = 64_MiB;       ///< maximum number of bytes loaded before their use is requested
  /// If set, create() begins this file anew, and what is moved, updated and waited for is written to it in the format
  /// of Chrome's traces, which Perfetto opens. It ends after 256 MiB, or at an error, and take_messages() says so.
  /// A timeline is replaced, another file is not: Runtime::create() returns already_exists.
  /// An error at the end of the runtime is not said: flush() before leaves little to be written then.
  std::filesystem::path timeline_file = {};
  std::uint32_t timeline_process = 0;  ///< its number there, such as the rank: files of several can be joined
  Executor* executor = nullptr;  ///< computes checksums; null: the mover thread does. Outlives the runtime
  IdleHandler* idle_handler = nullptr;  ///< null: the runtime starts its own threads. Outlives the runtime
};

}  // namespace penstock::swap
