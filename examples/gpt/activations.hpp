#pragma once

#include "gpt/device_memory.hpp"
#include "gpt/model_config.hpp"

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <vector>

namespace gpt {

/// The activations of one micro-batch, kept from forward to backward on the device. rows = sequences × context
/// throughout. Those that are operands of products (see Ops) have the dtype for them, all others are fp32. Owned by one
/// rank and reused for its next micro-batches. Copies are the same memory.
class Activations {
 public:
  /// The activations that a block keeps for its backward.
  struct Block {
    penstock::DeviceTensor norm1, norm1_statistics;  ///< operand[rows, width], [rows, 2]
    penstock::DeviceTensor qkv;                      ///< operand[rows, 3 · width]
    penstock::DeviceTensor log_sums;                 ///< [sequences, heads, context], of attention's scores
    penstock::DeviceTensor attended;                 ///< operand[rows, width]
    penstock::DeviceTensor middle;                   ///< [rows, width], the residual stream after attention
    penstock::DeviceTensor norm2, norm2_statistics;  ///< operand[rows, width], [rows, 2]
    penstock::DeviceTensor up, gelu;                 ///< operand[rows, 4 · width]
    /// operand[rows, rank], of the adapters: alpha / rank · x · aᵀ. Empty without adapters.
    penstock::DeviceTensor qkv_adapted, proj_adapted;
  };

  struct Options {
    std::uint32_t sequences = 1;
    /// Keep only the input of each block: its backward computes the others again (Chen et al. 2016). All blocks share
    /// one Block.
    bool checkpoint = false;
    bool offload = false;                              ///< the caller sets `residual` to memory of its own
    penstock::DType operands = penstock::DType::fp32;  ///< Ops::operand_dtype()
    /// How many are allocated. They share what is used within one visit of a unit, see ModelDescription, unless blocks
    /// are cut.
    std::uint32_t micro_batches = 1;
  };
  /// The activations of each of Options::micro_batches. Errors: those of the allocator.
  [[nodiscard]] static penstock::Result<std::vector<Activations>> allocate(const ModelConfig& config,
                                                                           const Options& options,
                                                                           DeviceAllocator& allocator);
  /// The size of the one buffer that allocate() requests.
  [[nodiscard]] static penstock::ByteCount size(const ModelConfig& config, const Options& options);

  [[nodiscard]] const Block& block(std::size_t layer) const {
    return blocks_.size() == 1 ? blocks_.front() : blocks_[layer];
  }

  std::uint32_t sequences = 0;
  penstock::DeviceSpan tokens, targets;          ///< one byte per row; the caller writes them
  std::vector<penstock::DeviceTensor> residual;  ///< [layers + 1] of [rows, width]: the input of each block
  penstock::DeviceTensor final_norm, final_norm_statistics;  ///< operand[rows, width], [rows, 2]
  penstock::DeviceTensor logits;                             ///< [rows, vocabulary]
  penstock::DeviceTensor losses;  ///< [rows], cross-entropy in nats; the caller takes the mean

  penstock::DeviceTensor residual_gradient;  ///< [rows, width], carried from unit to unit in the backward

  // Used only by the backward of one block. Some are the same memory, as noted.
  penstock::DeviceTensor logits_gradient;    ///< operand[rows, vocabulary]; the logits, if both are fp32
  penstock::DeviceTensor rounded_gradient;   ///< operand of residual_gradient; the same, if both are fp32
  penstock::DeviceTensor branch_gradient;    ///< [rows, width]
  penstock::DeviceTensor attended_gradient;  ///< operand[rows, width], in the branch gradient
  penstock::DeviceTensor wide_gradient;      ///< operand[rows, 4 · width]
  penstock::DeviceTensor projections;        ///< [sequences, heads, context], see Ops::AttentionBackward
  penstock::DeviceTensor adapted_gradient;   ///< operand[rows, rank]; empty without adapters
  /// [rows, 4 · width], a sum over the row blocks of a layer and its adapter; [rows, width], if it is only that of an
  /// adapter. Empty, if no layer whose input's gradient is an operand has more than one part.
  penstock::DeviceTensor summed_gradient;

 private:
  class Places;
  void lay_out_kept(const ModelConfig& config, const Options& options, Places& places);
  void lay_out_shared(const ModelConfig& config, const Options& options, Places& places);
  static std::vector<Activations> lay_out(const ModelConfig& config, const Options& options, Places& places);

  std::vector<Block> blocks_;  // one, if blocks share it
  DeviceBuffer buffer_;
};

/// The activations of the training's micro-batches that are in progress at a time.
[[nodiscard]] inline Activations::Options activation_options(
    const TrainingConfig& training, penstock::DType operands = penstock::DType::fp32) {
  return {.sequences = training.sequences,
          .checkpoint = training.checkpoint_activations || training.offload_activations,
          .offload = training.offload_activations,
          .operands = operands,
          .micro_batches = training.micro_batches_at_a_time()};
}

}  // namespace gpt
