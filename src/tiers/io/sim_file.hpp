#pragma once

#include <penstock/base/span.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace penstock::tiers {

/// A file of a simulated disk: its bytes as in the page cache, its bytes on the disk, and the changes that are not
/// on the disk yet.
///
/// A file without a name does not survive a power cut, so that it has no bytes on the disk and no changes.
class SimFile {
 public:
  /// Bytes that a drive writes atomically.
  static constexpr std::uint64_t sector = 512;

  /// `used` counts the reserved bytes of all files of the disk; it outlives the file.
  SimFile(ByteCount size, bool named, ByteCount& used);
  SimFile(const SimFile&) = delete;
  SimFile& operator=(const SimFile&) = delete;
  ~SimFile() { used_ -= reserved_; }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  [[nodiscard]] ByteCount size() const { return ByteCount(bytes_.size()); }
  /// Bytes that a write up to `end` would reserve in addition.
  [[nodiscard]] ByteCount missing(ByteCount end) const { return end > reserved_ ? end - reserved_ : 0_B; }

  /// Extends the file to `size` bytes.
  void grow(ByteCount size);
  /// Writes at `offset`, extends the file and reserves bytes if necessary.
  void write(FileOffset offset, ConstHostSpan bytes);

  /// Changes so far.
  [[nodiscard]] std::uint64_t change_count() const { return dropped_count_ + changes_.size(); }
  /// Makes the first `count` changes durable, except for those that are lost.
  void make_durable(std::uint64_t count);
  /// Makes an arbitrary subset of the first `count` changes durable, in arbitrary order, by sectors. The others are
  /// lost: bytes() has them until the next power cut.
  void lose_some(std::uint64_t count, std::uint64_t& random);
  /// Keeps the durable bytes and, as lose_some() does, an arbitrary subset of the other changes.
  void lose_power(std::uint64_t& random);

 private:
  /// Whole sectors, or none where only the length changes.
  struct Change {
    std::uint64_t begin = 0;
    std::vector<std::byte> sectors;
    std::size_t size_after = 0;
  };
  using Changes = std::deque<Change>;

  /// Removes and returns the first `count` changes, without those that are durable or lost already.
  [[nodiscard]] Changes take_changes(std::uint64_t count);
  /// Makes an arbitrary subset of the sectors of `change` durable.
  void tear(const Change& change, std::uint64_t& random);

  std::vector<std::byte> bytes_;
  std::vector<std::byte> durable_;  // empty without a name
  ByteCount reserved_;
  ByteCount& used_;
  const bool named_;
  std::uint64_t dropped_count_ = 0;  // changes that are durable or lost
  Changes changes_;                  // the later ones
};

}  // namespace penstock::tiers
