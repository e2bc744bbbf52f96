#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>

#include <atomic>
#include <cstdint>
#include <optional>
#include <vector>

namespace penstock::tiers {

/// The checksum, generation and optimizer step of each block of a tensor's payload, in host memory.
///
/// The checksum is XXH3-64 of the bytes, seeded with the tensor's key and the block index, so that bytes of another
/// tensor or block do not verify. Threads may seal and verify different blocks at the same time.
class BlockTable {
 public:
  struct Record {
    std::uint64_t hash = 0;
    std::uint64_t generation = 0;  ///< number of seal() calls; 0: never sealed
    std::uint64_t step = 0;        ///< optimizer step of its contents
  };

  BlockTable() = default;
  /// `block` > 0; the last block may be shorter.
  BlockTable(std::uint64_t seed, ByteCount payload, ByteCount block);

  [[nodiscard]] std::size_t block_count() const { return records_.size(); }
  /// The part of `payload` that block `index` covers.
  template <class Span>
  [[nodiscard]] Span block(Span payload, std::size_t index) const {
    const ByteCount begin = block_ * index;
    const ByteCount left = payload_ - begin;
    return payload.subspan(begin, left < block_ ? left : block_);
  }

  /// Records the checksum of block `index`, whose bytes are `bytes`.
  void seal(std::size_t index, ConstHostSpan bytes, std::uint64_t step) noexcept;
  /// Whether `bytes` equal those of the last seal(). False for a block that was never sealed.
  [[nodiscard]] bool verify(std::size_t index, ConstHostSpan bytes) const noexcept;

  void seal_all(ConstHostSpan payload, std::uint64_t step) noexcept;
  /// The index of the first block that does not verify, if there is one.
  [[nodiscard]] std::optional<std::size_t> first_mismatch(ConstHostSpan payload) const noexcept;

  [[nodiscard]] const Record& record(std::size_t index) const { return records_[index]; }
  /// Continues from the record of an earlier process.
  void set_record(std::size_t index, const Record& record) { records_[index] = record; }

  /// The optimizer step of all contents, as set by the caller that updates them; 0 initially. Safe from any thread: a
  /// step that leaves the contents as they are is set while they are stored.
  void stamp(std::uint64_t step) { std::atomic_ref(step_).store(step, std::memory_order_relaxed); }
  [[nodiscard]] std::uint64_t step() const { return std::atomic_ref(step_).load(std::memory_order_relaxed); }

 private:
  [[nodiscard]] std::uint64_t hash(std::size_t index, ConstHostSpan bytes) const noexcept;

  std::uint64_t seed_ = 0;
  mutable std::uint64_t step_ = 0;  // atomic_ref is not for const objects
  ByteCount payload_, block_;
  std::vector<Record> records_;
};

}  // namespace penstock::tiers
