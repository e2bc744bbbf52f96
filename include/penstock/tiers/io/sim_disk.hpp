#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>
#include <penstock/tiers/io/io_engine.hpp>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
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

class SimEngine;
class SimFile;
class SimNames;

/// A disk in memory: its files, how fast it is, and what a power cut leaves of them. A file system and its engines
/// share one, which outlives them.
///
/// What File::write and an engine's writes change is durable after File::sync, or after an engine's flush for what had
/// completed when the flush was submitted. Of files with a name, what has changed since their last flush is kept
/// twice, for power_cut(); a scratch file costs its bytes alone.
///
/// Owned by one thread at a time.
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
  Result<std::vector<std::string>> list(const std::filesystem::path& directory) override;
  Result<void> sync_directory(const std::filesystem::path& directory) override;
  Result<DirectoryLock> lock(const std::filesystem::path& directory) override;
  Result<ByteCount> free_space(const std::filesystem::path& directory) override;
  std::string type_name(const std::filesystem::path&) override { return "simulated"; }

  /// Makes a directory, durable at once: files with names need one, scratch files do not.
  void make_directory(const std::filesystem::path& directory);

  /// The power fails and comes back: the disk can be mounted again. `seed` chooses what is left.
  ///
  /// What was durable stays. Of the writes that were not, completed or in flight, an arbitrary subset stays, in
  /// arbitrary order, each perhaps in part, in whole sectors of 512 bytes; a file's length may be any that it has had
  /// since it was durable. Of the names, an arbitrary subset of what create, rename and remove have changed since the
  /// directory was synced; a single rename happens wholly or not at all. A file that was flushed goes with its name.
  /// Scratch files and locks are gone.
  ///
  /// Open files end here: operations on them fail with EBADF. So do requests in flight.
  void power_cut(std::uint64_t seed);

  /// The bytes of an open file, for a test to look at or to spoil, until it grows.
  [[nodiscard]] HostSpan bytes(FileHandle file);
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::size_t open_file_count() const { return open_.size(); }
  /// Flushes that engines have completed.
  [[nodiscard]] std::uint64_t flush_count() const { return flush_count_; }

 private:
  friend class SimEngine;
  void close(FileHandle handle) noexcept override;
  Result<ByteCount> size(const File::Properties& file) override;
  Result<void> extend(const File::Properties& file, ByteCount size) override;
  Result<void> read(const File::Properties& file, FileOffset offset, HostSpan into) override;
  Result<void> write(const File::Properties& file, FileOffset offset, ConstHostSpan bytes) override;
  Result<void> sync(const File::Properties& file) override;

  [[nodiscard]] SimFile* find(FileHandle handle) const noexcept;
  [[nodiscard]] File add_handle(std::shared_ptr<SimFile> file, std::string name, DirectIo direct);
  [[nodiscard]] bool misaligned(FileOffset offset, ConstHostSpan buffer) const noexcept;
  // As the kernel answers: bytes moved, or a negative errno.
  [[nodiscard]] std::int64_t read_at(FileHandle handle, FileOffset offset, HostSpan into) noexcept;
  [[nodiscard]] std::int64_t write_at(FileHandle handle, FileOffset offset, ConstHostSpan bytes) noexcept;

  Options options_;
  int next_handle_ = 1000;  // far from real descriptors, so that a mix-up fails
  ByteCount used_;
  std::uint64_t flush_count_ = 0;
  std::unique_ptr<SimNames> names_;
  std::map<FileHandle, std::shared_ptr<SimFile>> open_;
  int first_handle_ = next_handle_;  // older ones were open at the last power cut
  std::map<FileHandle, std::filesystem::path> locks_;
  std::vector<SimEngine*> engines_;
};

/// An engine over a SimDisk. Completion times follow its latency and bandwidth, their order a seed.
///
/// Bytes move at the moment of completion: a buffer that is reused, or freed, too early shows. A buffer
/// being read into is scrambled at submission, so that a reader who does not wait reads garbage.
///
/// Owned by one thread. reap never blocks: it returns what is due at the clock's time, and next_due() says
/// when the next one will be.
class SimEngine final : public IoEngine {
 public:
  SimEngine(SimDisk& disk, const SimClock& clock, std::uint64_t seed, std::uint32_t depth = 16);
  ~SimEngine() override;

  [[nodiscard]] std::size_t submit(std::span<const IoRequest> requests) noexcept override;
  [[nodiscard]] std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override;
  void wake() noexcept override {}
  void attach(FileHandle, HostSpan) noexcept override {}
  bool close(TimePoint deadline) noexcept override;

  [[nodiscard]] IoLimits limits() const noexcept override {
    return {.request_max = request_max, .depth = depth_};
  }
  [[nodiscard]] std::uint32_t in_flight() const noexcept override {
    return static_cast<std::uint32_t>(pending_.size() + done_.size());
  }
  [[nodiscard]] const char* name() const noexcept override { return "simulated"; }
  [[nodiscard]] std::string notes() const override { return {}; }

  /// When the next completion is due; forever when nothing is in flight.
  [[nodiscard]] TimePoint next_due() const noexcept;

 private:
  friend class SimDisk;
  static constexpr ByteCount request_max = 1_GiB;
  struct Pending {
    IoRequest request;
    TimePoint due;
    std::uint64_t changes = 0;  // of the file when a flush was submitted: those it makes durable
  };
  [[nodiscard]] std::int64_t perform(const Pending& pending) noexcept;
  void lose_power(std::uint64_t& random) noexcept;

  SimDisk& disk_;
  const SimClock& clock_;
  std::uint64_t random_;
  std::uint32_t depth_;
  bool closed_ = false;
  TimePoint device_free_{};
  std::vector<Pending> pending_;
  std::vector<IoCompletion> done_;
};

}  // namespace penstock::tiers
