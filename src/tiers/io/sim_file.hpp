#pragma once

#include <penstock/base/span.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

namespace penstock::tiers {

/// A file of a simulated disk: its bytes, and what has changed since they were last made durable.
///
/// A file without a name is gone after a power cut, so that nothing is kept of its changes.
class SimFile {
 public:
  /// What a drive writes whole or not at all.
  static constexpr std::uint64_t sector = 512;

  /// `used` counts the bytes that all files of the disk reserve, and outlives this.
  SimFile(ByteCount size, bool named, ByteCount& used);
  SimFile(const SimFile&) = delete;
  SimFile& operator=(const SimFile&) = delete;
  ~SimFile() { used_ -= reserved_; }

  [[nodiscard]] std::vector<std::byte>& bytes() { return bytes_; }
  [[nodiscard]] ByteCount size() const { return ByteCount(bytes_.size()); }
  /// Bytes that a write up to `end` would reserve further.
  [[nodiscard]] ByteCount missing(ByteCount end) const { return end > reserved_ ? end - reserved_ : 0_B; }

  /// Makes it `size` bytes long, which is more than it has.
  void grow(ByteCount size);
  /// Writes at `offset`, and grows where that is beyond the end. Reserves what is missing.
  void write(FileOffset offset, ConstHostSpan bytes);

  /// Changes so far.
  [[nodiscard]] std::uint64_t change_count() const { return durable_count_ + changes_.size(); }
  /// The first `count` changes are durable from here on.
  void make_durable(std::uint64_t count);
  /// Keeps what is durable, and of the other changes an arbitrary subset in arbitrary order, torn between sectors.
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
