#pragma once

#include "gpt/activations.hpp"
#include "gpt/model_description.hpp"
#include "gpt/ops.hpp"

#include <cstddef>
#include <cstdint>
#include <span>

namespace gpt {

/// The GPT, unit by unit: pre-norm blocks of attention and a 4× MLP, learned positions, the output head tied
/// to the token embedding (Radford et al. 2019).
///
/// Holds no parameters: each call is given the tensors of its unit, in the order of UnitDescription. A micro-batch is
/// forward of units 0 … n − 1, then ModelDescription::backward_visits(), on one stream. One thread at a time.
class Model {
 public:
  /// `ops` outlives the model.
  ///
  /// Errors: those of ModelConfig::validate(); invalid_argument, for a head or a rank that is not within Ops::limits().
  [[nodiscard]] static penstock::Result<Model> create(const ModelConfig& config, Ops& ops);

  [[nodiscard]] const ModelConfig& config() const { return config_; }
  [[nodiscard]] const ModelDescription& description() const { return description_; }

  /// Enqueues unit `unit`. The first reads activations.tokens; the last reads activations.targets and
  /// writes activations.losses.
  ///
  /// Errors: invalid_argument, when `weights` do not match the unit; those of Ops::status().
  [[nodiscard]] penstock::Result<void> forward(StreamHandle stream, std::size_t unit,
                                               std::span<const DeviceTensor> weights,
                                               Activations& activations);

  /// Enqueues what a BackwardVisit recomputes: the activations of the unit from the input of its block. Errors: as
  /// forward().
  [[nodiscard]] penstock::Result<void> recompute(StreamHandle stream, std::size_t unit,
                                                 std::span<const DeviceTensor> weights,
                                                 Activations& activations);

  /// Enqueues the backward of unit `unit`, of the loss `loss_scale` × mean cross-entropy, and writes each
  /// gradient once. Those of frozen parameters are empty. Errors: as forward().
  [[nodiscard]] penstock::Result<void> backward(StreamHandle stream, std::size_t unit,
                                                std::span<const DeviceTensor> weights,
                                                std::span<const Gradient> gradients, Activations& activations,
                                                float loss_scale);

 private:
  Model(const ModelConfig& config, Ops& ops) : config_(config), description_(config), ops_(&ops) {}

  /// Whether `tensors` are those of the unit's parameters, or of their gradients.
  enum class Tensors : std::uint8_t { parameters, gradients };
  [[nodiscard]] penstock::Result<void> check(const char* operation, std::size_t unit,
                                             std::span<const DeviceTensor> tensors,
                                             Tensors are = Tensors::parameters) const;
  [[nodiscard]] bool is_head(std::size_t unit) const { return unit + 1 == description_.units().size(); }

  void forward_embed(StreamHandle stream, std::span<const DeviceTensor> weights, Activations& a);
  void forward_head(StreamHandle stream, std::span<const DeviceTensor> weights, Activations& a);
  void backward_embed(StreamHandle stream, std::span<const Gradient> gradients, Activations& a);
  void backward_head(StreamHandle stream, std::span<const DeviceTensor> weights,
                     std::span<const Gradient> gradients, Activations& a, float loss_scale);

  /// The two tensors of a piece of a block.
  struct PieceWeights {
    DeviceTensor first, second;
  };
  struct PieceGradients {
    Gradient first, second;
  };
  void forward_piece(StreamHandle stream, std::size_t layer, const BlockPiece& piece,
                     const PieceWeights& weights, Activations& a);
  void backward_piece(StreamHandle stream, std::size_t layer, const BlockPiece& piece,
                      const PieceWeights& weights, const PieceGradients& gradients, Activations& a);
  /// The tensors of an adapter's layer, and what the adapter keeps for its backward.
  struct Adapter {
    DeviceTensor x, adapted;
  };
  /// y += scale · (x · aᵀ) · bᵀ, where `weights` are a and b; `adapted` becomes the first product.
  void forward_adapter(StreamHandle stream, const BlockPiece& piece, const PieceWeights& weights,
                       const Adapter& adapter, DeviceTensor y, const Activations& a);
  /// Overwrites dx, the gradient of x through the adapter. dy is an operand.
  void backward_adapter(StreamHandle stream, const BlockPiece& piece, const PieceWeights& weights,
                        const PieceGradients& gradients, const Adapter& adapter, DeviceTensor dy,
                        DeviceTensor dx, const Activations& a);
  /// The gradient of a layer's input from that of its output, for each of its pieces in the order of the backward.
  void backward_norm_input(StreamHandle stream, const BlockPiece& piece, DeviceTensor dy, DeviceTensor w,
                           Activations& a);
  void backward_attended(StreamHandle stream, const BlockPiece& piece, DeviceTensor w, Activations& a);
  void backward_gelu(StreamHandle stream, const BlockPiece& piece, DeviceTensor w, DeviceTensor up,
                     Activations& a);
  /// Adds the gradient through a norm to that of the residual stream.
  void backward_norm(StreamHandle stream, DeviceTensor x, DeviceTensor statistics, DeviceTensor gain,
                     const PieceGradients& gradients, Activations& a);

  /// Whether the gradient of a layer's input is that of the piece alone so far, in the order of the backward.
  [[nodiscard]] GradientWrite write_of(const BlockPiece& piece) const;
  /// The sum of attention's gradient, where several pieces add to it.
  [[nodiscard]] static DeviceTensor attended_sum(const Activations& a) {
    return a.summed_gradient.slice({}, a.branch_gradient.count());
  }

  /// Makes the gradient of the residual stream an operand.
  void round_residual_gradient(StreamHandle stream, const Activations& a);

  [[nodiscard]] std::uint32_t rows(const Activations& a) const { return a.sequences * config_.context; }
  [[nodiscard]] AttentionSize attention_size(const Activations& a) const {
    return {a.sequences, config_.context, config_.heads, config_.width};
  }
  [[nodiscard]] MatmulSize size_of(const BlockPiece& piece, const Activations& a) const {
    return {rows(a), piece.inputs, piece.outputs, piece.first, piece.all_outputs};
  }
  /// Of an adapter's two products.
  [[nodiscard]] MatmulSize size_of_a(const BlockPiece& piece, const Activations& a) const {
    return {.rows = rows(a), .inputs = piece.inputs, .outputs = piece.rank, .scale = config_.lora->scale()};
  }
  [[nodiscard]] MatmulSize size_of_b(const BlockPiece& piece, const Activations& a) const {
    return {.rows = rows(a), .inputs = piece.rank, .outputs = piece.outputs};
  }

  ModelConfig config_;
  ModelDescription description_;
  Ops* ops_;
};

}  // namespace gpt
