#pragma once

#include "fio.hpp"

#include <penstock/swap/path.hpp>
#include <penstock/tiers/host_arena.hpp>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <vector>

namespace penstock::bench {

enum class Operation : std::uint8_t { read, write, mixed };

/// fio's word for it: "read", "write", "rw".
[[nodiscard]] const char* fio_word(Operation operation);

/// A steady load on swap files, through Path as the library's runtime uses it: this thread posts transfers
/// and takes outcomes, each path's driver thread owns its file and its engine.
///
/// Transfers run through a file from end to end, writes half a file away from reads; mixed alternates.
/// Owned by one thread.
class SwapLoad {
 public:
  struct Options {
    std::vector<std::filesystem::path> directories;
    ByteCount file_size;
    ByteCount request_size = 1_MiB;
    ByteCount in_flight = 16_MiB;  ///< of each path
    tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  };

  /// Reserves the files, takes the memory, starts the drivers and writes every byte once.
  ///
  /// Errors: those of Path::create and HostArena::create, and of the first write that fails.
  [[nodiscard]] static Result<std::unique_ptr<SwapLoad>> create(const Options& options);
  ~SwapLoad();

  /// Keeps every path busy for `seconds`, then lets what is in flight finish; the time of that counts too.
  [[nodiscard]] Result<Sample> run(Operation operation, double seconds);

  [[nodiscard]] std::span<const std::unique_ptr<swap::Path>> paths() const { return paths_; }
  [[nodiscard]] const tiers::HostArena& arena() const { return arena_; }
  /// Of each file: file_size, rounded up to whole transfers.
  [[nodiscard]] ByteCount file_size() const { return file_size_; }

 private:
  struct Lane {
    std::vector<HostSpan> slots;
    FileOffset next_read, next_write;
    std::uint64_t posted = 0;
    std::size_t busy = 0;
  };

  SwapLoad(const Options& options, tiers::HostArena arena, std::vector<std::unique_ptr<swap::Path>> paths);
  Result<void> prewrite();
  void post(std::size_t path, std::size_t slot, Operation operation);
  void wait_for_outcomes();
  [[nodiscard]] TimePoint driver_cpu_time() const;
  [[nodiscard]] std::uint64_t request_count() const;

  ByteCount transfer_, file_size_;
  tiers::HostArena arena_;  // outlives the paths
  std::vector<std::unique_ptr<swap::Path>> paths_;
  std::vector<Lane> lanes_;
  std::vector<tiers::BlockFile::Finished> outcomes_;

  std::mutex mutex_;
  std::condition_variable arrived_;
  bool notified_ = false;
};

}  // namespace penstock::bench
