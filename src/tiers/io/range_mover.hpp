#pragma once

#include "tiers/io/block_file.hpp"
#include "tiers/memory/host_arena.hpp"

#include <penstock/tiers/io/file_transfers.hpp>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <string>

namespace penstock::tiers {

/// Moves one range of one file after the other, with an engine that it keeps: whole pages by direct I/O, where the file
/// has it, and the rest through the page cache.
///
/// Used by one thread; progress() is safe from any. move() blocks.
class RangeMover {
 public:
  explicit RangeMover(const FileTransfers::Options& options) : options_(options) {}
  ~RangeMover();
  RangeMover(const RangeMover&) = delete;
  RangeMover& operator=(const RangeMover&) = delete;

  /// Reads into `bytes`, or writes them. The file exists and, for a read, has them.
  ///
  /// Errors: those of opening the file and of BlockFile; after deadline_exceeded the kernel may still use `bytes`.
  Result<void> move(IoOperation operation, const std::filesystem::path& name, FileOffset offset,
                    HostSpan bytes);

  /// Another number whenever the drive has answered.
  [[nodiscard]] std::uint64_t progress() const { return progress_.load(std::memory_order_relaxed); }
  /// What was done otherwise than asked for.
  [[nodiscard]] const std::set<std::string>& notes() const { return notes_; }

 private:
  [[nodiscard]] Result<File> open(IoOperation operation, const std::filesystem::path& name,
                                  DirectIo direct) const;
  Result<void> move_end(IoOperation operation, const std::filesystem::path& name, FileOffset offset,
                        HostSpan bytes) const;
  Result<void> move_pages(IoOperation operation, File file, FileOffset offset, HostSpan bytes);
  Result<void> move_at_once(BlockFile& file, IoOperation operation, FileOffset offset, HostSpan bytes);
  Result<void> move_through_copies(BlockFile& file, IoOperation operation, FileOffset offset, HostSpan bytes);
  [[nodiscard]] BlockFile::Finished next_finished(BlockFile& file);
  Result<void> make_engine(const File& file);
  void close_engine() noexcept;

  const FileTransfers::Options options_;
  std::unique_ptr<IoEngine> engine_;
  std::optional<HostArena> copies_;
  std::set<std::string> notes_;
  std::atomic<std::uint64_t> progress_ = 0;
};

}  // namespace penstock::tiers
