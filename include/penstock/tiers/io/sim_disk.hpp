#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace penstock::tiers {

/// A clock that stands still until advance_to() is called. Safe from any thread.
class SimClock final : public Clock {
 public:
  [[nodiscard]] TimePoint now() const noexcept override { return TimePoint(ticks_.load()); }
  /// Never goes back.
  void advance_to(TimePoint when) noexcept {
    if (when.count() > ticks_.load()) ticks_.store(when.count());
  }

 private:
  std::atomic<TimePoint::rep> ticks_{0};
};

struct SimDiskState;

/// A file system in memory with a simulated speed, simulated power cuts and failed syncs. Outlives its files and its
/// engines.
///
///     SimDisk disk({.capacity = 1_GiB});
///     disk.make_directory("/checkpoints");
///     PENSTOCK_TRY_ASSIGN(File file, disk.create("/checkpoints/new", 1_MiB, DirectIo::preferred));
///     PENSTOCK_TRY(file.write(FileOffset(0), bytes));
///     disk.power_cut(/*seed=*/7);      // file.sync() was not called: any part of `bytes` may be lost
///
/// A write is durable after File::sync(), or after an engine's flush that was submitted after the write completed.
/// A file with a name takes memory for its current bytes, its durable bytes, and those of each write that is not
/// durable; a scratch file for its current bytes only.
///
/// Used by one thread at a time.
class SimDisk final : public FileSystem {
 public:
  struct Options {
    ByteCount capacity = 1_GiB;
    std::uint64_t bytes_per_second = 1'000'000'000;
    TimePoint latency = std::chrono::microseconds(80);
    Alignment alignment = Alignment(4096);
  };
  explicit SimDisk(const Options& options);
  ~SimDisk() override;

  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override;
  Result<File> create(const std::filesystem::path& path, ByteCount size, DirectIo direct) override;
  Result<File> open(const std::filesystem::path& path, DirectIo direct) override;
  Result<void> rename(const std::filesystem::path& from, const std::filesystem::path& to) override;
  Result<void> remove(const std::filesystem::path& path) override;
  Result<void> create_directory(const std::filesystem::path& path) override;
  Result<void> remove_directory(const std::filesystem::path& path) override;
  Result<std::vector<std::string>> list(const std::filesystem::path& directory) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<DirectoryLock> lock(const std::filesystem::path& directory) override;
  Result<ByteCount> free_space(const std::filesystem::path& directory) override;
  Result<bool> is_named(FileHandle file, const std::filesystem::path& path) override;
  std::string type_name(const std::filesystem::path&) override { return "simulated"; }

  /// Makes a directory, durable at once: files with names need one, scratch files do not.
  void make_directory(const std::filesystem::path& directory);

  /// The power fails and returns: the disk can be mounted again. `seed` chooses which changes survive.
  ///
  /// Durable bytes and names survive. Of the writes that are not durable, completed or in flight, an arbitrary subset
  /// survives, in arbitrary order, each perhaps in part, in whole sectors of 512 bytes. A file's length is its last
  /// durable one or one that it has had since. A create, rename or remove is durable once each directory that it
  /// changed was synced. Of those that are not durable, an arbitrary subset survives; a rename happens wholly or not
  /// at all, and an older change of a name that survives does not override a newer durable one. A flushed file is
  /// lost if its name is lost, or that of a directory above it. create_directory() is such a change too; a removed
  /// directory stays away. Scratch files and locks do not survive.
  ///
  /// Operations on files that were open fail with EBADF afterwards, requests in flight too.
  void power_cut(std::uint64_t seed);

  /// The power fails before the operation after the next `count` ones, as by power_cut(seed), and does not return
  /// before power_on(): until then every call and request fails with EIO. Counted are operations that change the disk:
  /// of engines, files and the file system. Cancels an earlier call.
  void power_cut_after(std::uint64_t count, std::uint64_t seed);
  /// The same, but it is the process that ends and not the power: nothing is lost before a power cut. Of the writes in
  /// flight an arbitrary part reaches the disk.
  void kill_after(std::uint64_t count, std::uint64_t seed);
  void power_on();
  /// Whether neither has happened since power_on().
  [[nodiscard]] bool has_power() const;
  /// Such operations so far.
  [[nodiscard]] std::uint64_t change_count() const;

  /// The next `count` syncs fail with EIO: calls of File::sync() and sync_directory(), and flushes of engines. `seed`
  /// chooses what they lose. Cancels the failures that an earlier call has left.
  ///
  /// Of the changes that a failed sync should have made durable, an arbitrary subset is durable, by sectors as after
  /// power_cut(). The others do not become durable even if a later sync succeeds, as on ext4 and XFS, which mark a
  /// page clean after its write has failed. Until a power cut, reads, list() and open() still see these changes.
  /// Exception: if any part of a lost sector is written again, the next successful sync makes the whole sector
  /// durable.
  void fail_syncs(std::uint64_t count, std::uint64_t seed);

  /// The bytes of an open file, which a test may read or corrupt. Valid until the file grows.
  [[nodiscard]] HostSpan bytes(FileHandle file);
  [[nodiscard]] const Options& options() const;
  [[nodiscard]] std::size_t open_file_count() const;
  /// Flushes that engines have completed without error.
  [[nodiscard]] std::uint64_t flush_count() const;

 private:
  friend class SimEngine;
  void close(FileHandle handle) noexcept override;
  Result<ByteCount> size(const File::Properties& file) override;
  Result<void> extend(const File::Properties& file, ByteCount size) override;
  Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) override;
  Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) override;
  Result<void> sync(const File::Properties& file) override;

  std::unique_ptr<SimDiskState> state_;
};

/// An engine over a SimDisk. A request takes the disk's latency plus the request's length divided by the disk's
/// bandwidth, which the requests in flight share. A seed varies the latency and chooses the order of completions that
/// are due together.
///
///     SimEngine engine(disk, clock, /*seed=*/1);
///     (void)engine.submit({&request, 1});
///     clock.advance_to(engine.next_due());
///     engine.reap(completions, forever);
///
/// Bytes move at the moment of completion, so that a buffer that is reused or freed too early shows as wrong bytes.
/// submit() fills the buffer of a read with random bytes, so that a caller that does not wait reads garbage.
///
/// Used by one thread. reap() never blocks: it returns what is due at the clock's time.
class SimEngine final : public IoEngine {
 public:
  /// `disk` and `clock` outlive it.
  SimEngine(SimDisk& disk, const SimClock& clock, std::uint64_t seed, std::uint32_t depth = 16);
  ~SimEngine() override;

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) noexcept override;
  [[nodiscard]] std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override;
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint deadline) noexcept override;

  [[nodiscard]] IoLimits limits() const noexcept override;
  [[nodiscard]] std::uint32_t in_flight() const noexcept override;
  [[nodiscard]] const char* name() const noexcept override { return "simulated"; }
  [[nodiscard]] std::string notes() const override { return {}; }

  /// When the next completion is due; forever when nothing is in flight.
  [[nodiscard]] TimePoint next_due() const noexcept;

 private:
  friend struct SimDiskState;
  void lose_power(std::uint64_t& random) noexcept;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace penstock::tiers
