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

/// A clock that stands still until somebody advances it. Safe from any thread.
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

/// A disk in memory: its files, and how fast it is. A file system and its engines share one.
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
  explicit SimDisk(const Options& options) : options_(options) {}

  Result<File> create_scratch(const std::filesystem::path& directory, ByteCount size,
                              DirectIo direct) override;
  Result<ByteCount> free_space(const std::filesystem::path& directory) override;
  std::string type_name(const std::filesystem::path&) override { return "simulated"; }

  /// The bytes of an open file, for a test to look at or to spoil.
  [[nodiscard]] HostSpan bytes(FileHandle file);
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::size_t open_file_count() const { return files_.size(); }
  /// Flushes that engines have completed.
  [[nodiscard]] std::uint64_t flush_count() const { return flush_count_; }

 private:
  friend class SimEngine;
  void close(FileHandle handle) noexcept override;
  Result<void> extend(const File::Properties& file, ByteCount size) override;

  Options options_;
  int next_handle_ = 1000;  // far from real descriptors, so that a mix-up fails
  ByteCount used_;
  std::uint64_t flush_count_ = 0;
  struct OpenFile {
    std::vector<std::byte> bytes;
    ByteCount reserved;
  };
  std::map<FileHandle, OpenFile> files_;
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
  SimEngine(SimDisk& disk, const SimClock& clock, std::uint64_t seed, std::uint32_t depth = 16)
      : disk_(disk), clock_(clock), random_(seed), depth_(depth) {}
  ~SimEngine() override { (void)SimEngine::close(forever); }

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
  static constexpr ByteCount request_max = 1_GiB;
  struct Pending {
    IoRequest request;
    TimePoint due;
  };
  [[nodiscard]] std::uint64_t random() noexcept;
  [[nodiscard]] std::int64_t perform(const IoRequest& request) noexcept;

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
