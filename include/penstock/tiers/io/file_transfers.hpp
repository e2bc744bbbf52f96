#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tiers {

/// Reads and writes ranges of files that the caller names, in the background: what DeepSpeed's aio_handle does.
///
///     auto transfers = tiers::FileTransfers::create({.threads = 2}).value();
///     transfers->start_write("/mnt/nvme0/a", FileOffset(0), bytes_of_a).value();
///     transfers->start_read("/mnt/nvme0/b", FileOffset(4096), into).value();
///     std::size_t ended = transfers->wait().value();       // 2
///
/// Any offset, length and address is taken. Where all three are multiples of 4096 and the file system allows it, bytes
/// bypass the page cache; the ends of another range, less than 4096 bytes each, go through it; and memory that begins
/// elsewhere is copied through a buffer of Options::depth requests, at most 16 MiB a thread. Nothing is made durable.
/// Transfers are executed in any order: do not start one that overlaps another, in the file or in memory, before
/// wait().
///
/// Used by one thread at a time. The start functions open the file and return; wait() and the destructor block.
class FileTransfers {
 public:
  struct Options {
    ByteCount request_max = 1_MiB;  ///< of one request to the drive; a multiple of 4096
    std::uint32_t depth = 128;      ///< most requests in flight of each thread
    /// Each has an engine and files of its own; a transfer is cut into as many parts, which are moved at the same time.
    std::uint32_t threads = 1;
    EngineChoice engine = EngineChoice::automatic;
    TimePoint deadline =
        std::chrono::seconds(60);  ///< for one request, and for opening a file; forever: none
    /// Outlives the object, and calls that have not returned after deadline_exceeded.
    FileSystem* files = &real_file_system();
    /// If set, replaces each thread's engine by its return value, in a test. Called by that thread.
    std::function<std::unique_ptr<IoEngine>(std::unique_ptr<IoEngine>)> decorate = {};
  };

  /// Errors: invalid_argument, for an option that is out of its range; no_space, for a thread.
  [[nodiscard]] static Result<std::unique_ptr<FileTransfers>> create(Options options);
  /// As wait(); the outcome is lost.
  ~FileTransfers();

  /// Fills `into`, which stays alive until wait(), with the bytes of the file from `offset` on.
  ///
  /// Errors, which start nothing: not_found, permission, and invalid_argument for what is no regular file; truncated,
  /// if the file ends before the last byte; invalid_argument, for an offset beyond 2^63; deadline_exceeded;
  /// failed_state, after deadline_exceeded of wait().
  Result<void> start_read(const std::filesystem::path& file, FileOffset offset, HostSpan into);
  /// Writes `bytes`, which stay alive and unchanged until wait(), to the file from `offset` on. Makes the file, with
  /// mode 0600, or extends it if necessary; bytes that it has elsewhere stay.
  ///
  /// Errors, which start nothing: as start_read(), and not_found for the directory; no_space, for the length.
  Result<void> start_write(const std::filesystem::path& file, FileOffset offset, ConstHostSpan bytes);
  /// Waits until all transfers have ended. Returns how many were started since the last call.
  ///
  /// Errors: that of the first transfer that has failed, with those of the others as notes: io, no_space, truncated,
  /// naming the file and the offset; before all others the first deadline_exceeded, when the kernel may still use the
  /// buffers of these transfers: keep them until the process ends.
  [[nodiscard]] Result<std::size_t> wait();

  /// Transfers that were started since the last wait().
  [[nodiscard]] std::size_t started() const;
  /// What was done otherwise than asked for so far, with reasons, one line each: another engine, buffered I/O, copies.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  struct State;
  explicit FileTransfers(std::shared_ptr<State> state) : state_(std::move(state)) {}
  Result<void> start(IoOperation operation, const std::filesystem::path& file, FileOffset offset,
                     HostSpan bytes);

  std::shared_ptr<State> state_;  // threads that a drive keeps share it
};

}  // namespace penstock::tiers
