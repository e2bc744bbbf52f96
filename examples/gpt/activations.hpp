#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/model_config.hpp"

#include <cstddef>
#include <vector>

namespace gpt {

/// The activations of one micro-batch, kept from forward to backward, in fp32 on the device. rows = sequences ×
/// context throughout. Owned by one rank and reused for its next micro-batch.
class Activations {
 public:
  /// The activations that a block keeps for its backward.
  struct Block {
    penstock::DeviceTensor norm1, norm1_statistics;  ///< [rows, width], [rows, 2]
    penstock::DeviceTensor qkv;                      ///< [rows, 3 · width]
    penstock::DeviceTensor log_sums;                 ///< [sequences, heads, context], of attention's scores
    penstock::DeviceTensor attended;                 ///< [rows, width]
    penstock::DeviceTensor middle;                   ///< [rows, width], the residual stream after attention
    penstock::DeviceTensor norm2, norm2_statistics;  ///< [rows, width], [rows, 2]
    penstock::DeviceTensor up, gelu;                 ///< [rows, 4 · width]
  };

  /// Errors: those of the allocator.
  [[nodiscard]] static penstock::Result<Activations> allocate(const ModelConfig& config,
                                                              std::uint32_t sequences,
                                                              DeviceAllocator& allocator);
  /// The size of the one buffer that allocate() requests.
  [[nodiscard]] static penstock::ByteCount size(const ModelConfig& config, std::uint32_t sequences);

  std::uint32_t sequences = 0;
  penstock::DeviceSpan tokens, targets;          ///< one byte per row; the caller writes them
  std::vector<penstock::DeviceTensor> residual;  ///< [layers + 1] of [rows, width]: the input of each block
  std::vector<Block> blocks;
  penstock::DeviceTensor final_norm, final_norm_statistics;
  penstock::DeviceTensor logits;  ///< [rows, vocabulary]; the backward overwrites it with its gradient
  penstock::DeviceTensor losses;  ///< [rows], cross-entropy in nats; the caller takes the mean

  // Used only by the backward.
  penstock::DeviceTensor residual_gradient;  ///< [rows, width], carried from unit to unit
  penstock::DeviceTensor branch_gradient;    ///< [rows, width]
  penstock::DeviceTensor wide_gradient;      ///< [rows, 4 · width]
  penstock::DeviceTensor projections;        ///< [sequences, heads, context], see Ops::AttentionBackward

 private:
  template <class Place>
  void lay_out(const ModelConfig& config, std::uint32_t sequence_count, Place place);

  DeviceBuffer buffer_;
};

}  // namespace gpt
