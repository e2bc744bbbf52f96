#pragma once

#include <penstock/cpu_adam/adam.hpp>
#include "tiers/store/block_table.hpp"

#include <cstdint>

namespace penstock::zero {

/// Verifies each block of a tile just before its update and seals it just after, at that step. `blocks` has
/// the blocks of the tile's format, and outlives this.
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
