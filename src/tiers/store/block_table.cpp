#include "tiers/store/block_table.hpp"
#include <penstock/base/check.hpp>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace penstock::tiers {

BlockTable::BlockTable(std::uint64_t seed, ByteCount payload, ByteCount block)
    : seed_(seed), payload_(payload), block_(block), records_(ceil_divide(payload.value(), block.value())) {}

std::uint64_t BlockTable::hash(std::size_t index, ConstHostSpan bytes) const noexcept {
  // An odd multiplier gives each block of a tensor another seed.
  const std::uint64_t seed = seed_ + index * 0x9e3779b97f4a7c15u;
  return XXH3_64bits_withSeed(bytes.data(), bytes.size().value(), seed);
}

void BlockTable::seal(std::size_t index, ConstHostSpan bytes, std::uint64_t step) noexcept {
  Record& record = records_[index];
  record = {.hash = hash(index, bytes), .generation = record.generation + 1, .step = step};
}

bool BlockTable::verify(std::size_t index, ConstHostSpan bytes) const noexcept {
  const Record& record = records_[index];
  return record.generation > 0 && record.hash == hash(index, bytes);
}

void BlockTable::seal_all(ConstHostSpan payload, std::uint64_t step) noexcept {
  for (std::size_t i = 0; i < records_.size(); ++i) seal(i, block(payload, i), step);
}

std::optional<std::size_t> BlockTable::first_mismatch(ConstHostSpan payload) const noexcept {
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (!verify(i, block(payload, i))) return i;
  }
  return std::nullopt;
}

}  // namespace penstock::tiers
