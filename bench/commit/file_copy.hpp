#pragma once

#include "huge_buffer.hpp"

#include <penstock/base/time.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::bench {

/// The disk's own rate for what a checkpoint does that replaces an older one: a file is copied to a new one and made
/// durable, by 4 threads with direct I/O of 8 MiB at a time, without a look at the bytes, and the copy before is
/// removed.
class FileCopy {
 public:
  FileCopy(std::filesystem::path directory, ByteCount size)
      : from_(directory / "from"), to_(directory / "to"), size_(round_up(size, Alignment(4096))) {}
  FileCopy(const FileCopy&) = delete;
  FileCopy& operator=(const FileCopy&) = delete;
  ~FileCopy() {
    std::error_code ignored;
    for (const auto& path : {from_, to_}) std::filesystem::remove(path, ignored);
  }

  /// Writes the file that is copied.
  Result<void> open() {
    tiers::FileSystem& files = tiers::real_file_system();
    PENSTOCK_TRY_ASSIGN(tiers::File file, files.create(from_, size_, tiers::DirectIo::preferred));
    const HugeBuffer buffer(piece);
    for (ByteCount begin; begin < size_; begin += piece)
      PENSTOCK_TRY(file.write(FileOffset(begin.value()), buffer.span().subspan({}, length_at(begin))));
    return file.sync();
  }

  /// Bytes read and written per second.
  Result<double> run() {
    const TimePoint began = Clock::steady().now();
    std::error_code ignored;
    std::filesystem::remove(to_, ignored);
    tiers::FileSystem& files = tiers::real_file_system();
    PENSTOCK_TRY_ASSIGN(tiers::File file, files.create(to_, size_, tiers::DirectIo::preferred));
    std::atomic<std::uint64_t> next = 0;
    std::vector<Result<void>> outcomes(threads, ok());
    std::vector<std::thread> running;
    for (std::size_t i = 0; i < threads; ++i)
      running.emplace_back([&, i] { outcomes[i] = copy_pieces(files, next); });
    for (std::thread& thread : running) thread.join();
    for (const Result<void>& outcome : outcomes) PENSTOCK_TRY(outcome);
    PENSTOCK_TRY(file.sync());
    return 2 * static_cast<double>(size_.value()) /
           std::chrono::duration<double>(Clock::steady().now() - began).count();
  }

 private:
  static constexpr ByteCount piece = 8_MiB;
  static constexpr std::size_t threads = 4;

  [[nodiscard]] ByteCount length_at(ByteCount begin) const { return std::min(piece, size_ - begin); }

  Result<void> copy_pieces(tiers::FileSystem& files, std::atomic<std::uint64_t>& next) const {
    PENSTOCK_TRY_ASSIGN(const tiers::File from, files.open(from_, tiers::DirectIo::preferred));
    PENSTOCK_TRY_ASSIGN(tiers::File to, files.open(to_, tiers::DirectIo::preferred));
    const HugeBuffer buffer(piece);
    for (ByteCount begin = piece * next++; begin < size_; begin = piece * next++) {
      const HostSpan bytes = buffer.span().subspan({}, length_at(begin));
      PENSTOCK_TRY(from.read(FileOffset(begin.value()), bytes));
      PENSTOCK_TRY(to.write(FileOffset(begin.value()), bytes));
    }
    return ok();
  }

  const std::filesystem::path from_, to_;
  const ByteCount size_;
};

}  // namespace penstock::bench
