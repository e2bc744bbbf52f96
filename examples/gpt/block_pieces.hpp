#pragma once

#include "gpt/model_config.hpp"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace gpt {

/// A part of a block's forward that has two parameters, one after the other: gain and bias of a norm, rows of a
/// layer's matrix and of its bias, or the matrices a and b of a layer's adapter, see LoraConfig.
struct BlockPiece {
  /// In the order of the forward. An adapter adds to what its layer has computed.
  enum class Kind : std::uint8_t { norm1, qkv, qkv_adapter, proj, proj_adapter, norm2, up, down } kind;
  std::uint32_t inputs = 0;              ///< columns of the matrix; of a norm 0
  std::uint32_t first = 0, outputs = 0;  ///< rows of the matrix; elements of a norm
  std::uint32_t all_outputs = 0;         ///< of the whole layer
  std::uint32_t rank = 0;                ///< of an adapter; else 0

  [[nodiscard]] bool is_adapter() const { return rank > 0; }
  [[nodiscard]] bool is_whole() const { return outputs == all_outputs; }
  [[nodiscard]] bool begins_layer() const { return first == 0; }
  [[nodiscard]] bool ends_layer() const { return first + outputs == all_outputs; }
  [[nodiscard]] penstock::ElementCount element_count() const {
    if (is_adapter()) return penstock::ElementCount(std::uint64_t{rank} * (inputs + outputs));
    return penstock::ElementCount(std::uint64_t{outputs} * (inputs == 0 ? 2 : inputs + 1));
  }
};

/// The pieces of the units that a block consists of, in the order of the forward: one unit, if
/// ModelConfig::unit_elements_max permits.
///
/// Errors: invalid_argument, for a limit below that of the smallest row block.
[[nodiscard]] penstock::Result<std::vector<std::vector<BlockPiece>>> block_pieces(const ModelConfig& config);

}  // namespace gpt
