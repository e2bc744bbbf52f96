#pragma once

#include <penstock/cpu_adam/adam.hpp>
#include "tiers/store/block_table.hpp"

#include <cstdint>

namespace penstock::zero {

/// Verifies the checksum of each block of a tile just before its update and stores the new one just after, with the
/// step number. `blocks` has the blocks of the tile's format and must outlive this object.
class BlockSeal final : public cpu_adam::BlockObserver {
 public:
  BlockSeal(tiers::BlockTable& blocks, std::uint64_t step) : blocks_(blocks), step_(step) {}
  bool before_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    return blocks_.verify(block, bytes);
  }
  void after_update(std::size_t block, ConstHostSpan bytes) noexcept override {
    blocks_.seal(block, bytes, step_);
  }

 private:
  tiers::BlockTable& blocks_;
  std::uint64_t step_;
};

}  // namespace penstock::zero
