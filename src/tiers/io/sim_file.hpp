#pragma once

#include <penstock/base/span.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace penstock::tiers {

/// A file of a simulated disk: its bytes, and the changes since they were last made durable.
///
/// A file without a name does not survive a power cut, so that its changes are not recorded.
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
  [[nodiscard]] std::uint64_t change_count() const { return durable_count_ + changes_.size(); }
  /// Makes the first `count` changes durable.
  void make_durable(std::uint64_t count);
  /// Keeps the durable bytes and applies an arbitrary subset of the other changes in arbitrary order, by sectors.
  void lose_power(std::uint64_t& random);

 private:
  /// Whole sectors, or none where only the length changes.
  struct Change {
    std::uint64_t begin = 0;
    std::vector<std::byte> before, after;
    std::size_t size_after = 0;
  };
  void put(std::uint64_t begin, const std::vector<std::byte>& sectors);

  std::vector<std::byte> bytes_;
  ByteCount reserved_;
  ByteCount& used_;
  const bool named_;
  std::size_t durable_size_ = 0;
  std::uint64_t durable_count_ = 0;
  std::deque<Change> changes_;
};

}  // namespace penstock::tiers
