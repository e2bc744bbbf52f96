#include "gpt/model.hpp"

#include <string>

namespace gpt {

namespace {

using penstock::Error;
using penstock::Result;

using Kind = BlockPiece::Kind;

enum EmbedTensor : std::size_t { token_embedding, position_embedding };
enum HeadTensor : std::size_t { norm_gain, norm_bias, tied_embedding };

}  // namespace

Result<Model> Model::create(const ModelConfig& config, Ops& ops) {
  PENSTOCK_TRY(config.validate());
  const std::uint32_t head_width = config.width / config.heads;
  const auto [most, multiple, rank_multiple] = ops.limits();
  if (head_width > most || head_width % multiple != 0) {
    return Error::invalid_argument("Model::create")
        .object("width of a head (--width / --heads)")
        .wanted("a multiple of " + std::to_string(multiple) + ", at most " + std::to_string(most) +
                ", on this device")
        .got(head_width);
  }
  if (config.lora && config.lora->rank % rank_multiple != 0) {
    return Error::invalid_argument("Model::create")
        .object("rank of the adapters (--lora)")
        .wanted("a multiple of " + std::to_string(rank_multiple) + " on this device")
        .got(config.lora->rank);
  }
  return Model(config, ops);
}

Result<void> Model::check(const char* operation, std::size_t unit, std::span<const DeviceTensor> tensors,
                          Tensors are) const {
  if (unit >= description_.units().size()) {
    return Error::invalid_argument(operation)
        .object("unit")
        .wanted("below " + std::to_string(description_.units().size()))
        .got(unit);
  }
  const UnitDescription& described = description_.units()[unit];
  if (tensors.size() != described.tensor_count()) {
    return Error::invalid_argument(operation)
        .object(described.name)
        .reason("number of tensors differs")
        .wanted(described.tensor_count())
        .got(tensors.size());
  }
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::size_t owned = described.parameters.size();
    const ParameterDescription& parameter =
        i < owned ? described.parameters[i] : description_.parameter(described.uses[i - owned]);
    const bool empty = are == Tensors::gradients && parameter.frozen;
    const penstock::ElementCount wanted = empty ? penstock::ElementCount() : parameter.count;
    if (tensors[i].count() != wanted) {
      return Error::invalid_argument(operation)
          .object(described.name + "." + parameter.name)
          .wanted(wanted)
          .got(tensors[i].count());
    }
  }
  return penstock::ok();
}

Result<void> Model::forward(StreamHandle stream, std::size_t unit, std::span<const DeviceTensor> weights,
                            Activations& activations) {
  PENSTOCK_TRY(check("Model::forward", unit, weights));

  if (unit == 0) {
    forward_embed(stream, weights, activations);
  } else if (is_head(unit)) {
    forward_head(stream, weights, activations);
  } else {
    const UnitDescription& described = description_.units()[unit];
    for (std::size_t i = 0; i < described.pieces.size(); ++i) {
      forward_piece(stream, described.layer, described.pieces[i], {weights[2 * i], weights[2 * i + 1]},
                    activations);
    }
  }
  return ops_->status();
}

Result<void> Model::recompute(StreamHandle stream, std::size_t unit, std::span<const DeviceTensor> weights,
                              Activations& activations) {
  PENSTOCK_TRY(check("Model::recompute", unit, weights));
  const UnitDescription& described = description_.units()[unit];
  for (std::size_t i = 0; i < described.pieces.size(); ++i) {
    if (described.pieces[i].kind == Kind::down) break;
    forward_piece(stream, described.layer, described.pieces[i], {weights[2 * i], weights[2 * i + 1]},
                  activations);
  }
  return ops_->status();
}

Result<void> Model::backward(StreamHandle stream, std::size_t unit, std::span<const DeviceTensor> weights,
                             std::span<const Gradient> gradients, Activations& activations,
                             float loss_scale) {
  PENSTOCK_TRY(check("Model::backward", unit, weights));
  std::vector<DeviceTensor> tensors;
  for (const Gradient& gradient : gradients) tensors.push_back(gradient.tensor);
  PENSTOCK_TRY(check("Model::backward (gradients)", unit, tensors, Tensors::gradients));

  if (unit == 0) {
    backward_embed(stream, gradients, activations);
  } else if (is_head(unit)) {
    backward_head(stream, weights, gradients, activations, loss_scale);
  } else {
    const UnitDescription& described = description_.units()[unit];
    for (std::size_t i = described.pieces.size(); i-- > 0;) {
      backward_piece(stream, described.layer, described.pieces[i], {weights[2 * i], weights[2 * i + 1]},
                     {gradients[2 * i], gradients[2 * i + 1]}, activations);
    }
  }
  return ops_->status();
}

void Model::round_residual_gradient(StreamHandle stream, const Activations& a) {
  if (ops_->operand_dtype() != penstock::DType::fp32)
    ops_->round(stream, a.residual_gradient, a.rounded_gradient);
}

void Model::forward_embed(StreamHandle stream, std::span<const DeviceTensor> weights, Activations& a) {
  ops_->embed(stream, {a.sequences, config_.context, config_.width, ModelConfig::vocabulary}, a.tokens,
              weights[token_embedding], weights[position_embedding], a.residual[0]);
}

void Model::backward_embed(StreamHandle stream, std::span<const Gradient> gradients, Activations& a) {
  ops_->embed_backward(stream, {a.sequences, config_.context, config_.width, ModelConfig::vocabulary},
                       a.tokens, a.residual_gradient, gradients[token_embedding],
                       gradients[position_embedding]);
}

void Model::forward_piece(StreamHandle stream, std::size_t layer, const BlockPiece& piece,
                          const PieceWeights& weights, Activations& a) {
  const RowsSize norm{rows(a), config_.width};
  const MatmulSize size = size_of(piece, a);
  const Activations::Block& block = a.block(layer);
  const DeviceTensor in = a.residual[layer], w = weights.first, b = weights.second;
  switch (piece.kind) {
    case Kind::norm1: ops_->layer_norm(stream, norm, in, w, b, block.norm1, block.norm1_statistics); break;
    case Kind::qkv: ops_->linear(stream, size, {block.norm1, w, b}, block.qkv); break;
    case Kind::qkv_adapter:
      forward_adapter(stream, piece, weights, {block.norm1, block.qkv_adapted}, block.qkv, a);
      break;
    case Kind::proj:
      if (piece.begins_layer())
        ops_->attention(stream, attention_size(a), block.qkv, block.log_sums, block.attended);
      ops_->linear_add(stream, size, {block.attended, w, b}, in, block.middle);
      break;
    case Kind::proj_adapter:
      forward_adapter(stream, piece, weights, {block.attended, block.proj_adapted}, block.middle, a);
      break;
    case Kind::norm2:
      ops_->layer_norm(stream, norm, block.middle, w, b, block.norm2, block.norm2_statistics);
      break;
    case Kind::up: ops_->linear_gelu(stream, size, {block.norm2, w, b}, block.up, block.gelu); break;
    case Kind::down:
      ops_->linear_add(stream, size, {block.gelu, w, b}, block.middle, a.residual[layer + 1]);
      break;
  }
}

void Model::forward_adapter(StreamHandle stream, const BlockPiece& piece, const PieceWeights& weights,
                            const Adapter& adapter, DeviceTensor y, const Activations& a) {
  ops_->linear(stream, size_of_a(piece, a), {adapter.x, weights.first, {}}, adapter.adapted);
  ops_->linear_add(stream, size_of_b(piece, a), {adapter.adapted, weights.second, {}}, y, y);
}

void Model::backward_adapter(StreamHandle stream, const BlockPiece& piece, const PieceWeights& weights,
                             const PieceGradients& gradients, const Adapter& adapter, DeviceTensor dy,
                             DeviceTensor dx, const Activations& a) {
  const MatmulSize size_a = size_of_a(piece, a), size_b = size_of_b(piece, a);
  const DeviceTensor dadapted = a.adapted_gradient;
  ops_->linear_gradients(stream, size_b, dy, adapter.adapted, gradients.second, {});
  ops_->linear_backward(stream, size_b, dy, weights.second, {dadapted});
  ops_->linear_gradients(stream, size_a, dadapted, adapter.x, gradients.first, {});
  ops_->linear_backward(stream, size_a, dadapted, weights.first, {dx});
}

void Model::backward_piece(StreamHandle stream, std::size_t layer, const BlockPiece& piece,
                           const PieceWeights& weights, const PieceGradients& gradients, Activations& a) {
  const MatmulSize size = size_of(piece, a);
  const Activations::Block& block = a.block(layer);
  const DeviceTensor w = weights.first;
  const auto parameters = [&](DeviceTensor dy, DeviceTensor x) {
    ops_->linear_gradients(stream, size, dy, x, gradients.first, gradients.second);
  };
  const DeviceTensor dqkv = a.wide_gradient.slice({}, block.qkv.count());
  switch (piece.kind) {
    case Kind::down:
      if (piece.ends_layer()) round_residual_gradient(stream, a);
      parameters(a.rounded_gradient, block.gelu);
      backward_gelu(stream, piece, w, block.up, a);
      break;
    case Kind::up:
      parameters(a.wide_gradient, block.norm2);
      backward_norm_input(stream, piece, a.wide_gradient, w, a);
      break;
    case Kind::norm2:
      backward_norm(stream, block.middle, block.norm2_statistics, w, gradients, a);
      round_residual_gradient(stream, a);
      break;
    case Kind::proj_adapter:
      backward_adapter(stream, piece, weights, gradients, {block.attended, block.proj_adapted},
                       a.rounded_gradient, attended_sum(a), a);
      break;
    case Kind::proj:
      parameters(a.rounded_gradient, block.attended);
      backward_attended(stream, piece, w, a);
      if (piece.begins_layer()) {
        ops_->attention_backward(stream, attention_size(a),
                                 {.qkv = block.qkv,
                                  .log_sums = block.log_sums,
                                  .y = block.attended,
                                  .dy = a.attended_gradient,
                                  .projections = a.projections,
                                  .dqkv = dqkv});
      }
      break;
    case Kind::qkv_adapter:
      backward_adapter(stream, piece, weights, gradients, {block.norm1, block.qkv_adapted}, dqkv,
                       a.branch_gradient, a);
      break;
    case Kind::qkv:
      parameters(dqkv, block.norm1);
      backward_norm_input(stream, piece, dqkv, w, a);
      break;
    case Kind::norm1:
      backward_norm(stream, a.residual[layer], block.norm1_statistics, w, gradients, a);
      break;
  }
}

GradientWrite Model::write_of(const BlockPiece& piece) const {
  // The backward begins with the adapter, then the layer's last rows.
  const bool adapted = config_.lora && (piece.kind == Kind::qkv || piece.kind == Kind::proj);
  return piece.ends_layer() && !adapted ? GradientWrite::overwrite : GradientWrite::accumulate;
}

void Model::backward_norm_input(StreamHandle stream, const BlockPiece& piece, DeviceTensor dy, DeviceTensor w,
                                Activations& a) {
  ops_->linear_backward(stream, size_of(piece, a), dy, w, {a.branch_gradient, write_of(piece)});
}

void Model::backward_attended(StreamHandle stream, const BlockPiece& piece, DeviceTensor w, Activations& a) {
  const MatmulSize size = size_of(piece, a);
  if (piece.is_whole() && !config_.lora)
    return ops_->linear_backward(stream, size, a.rounded_gradient, w, {a.attended_gradient});
  const DeviceTensor sum = attended_sum(a);
  ops_->linear_backward(stream, size, a.rounded_gradient, w, {sum, write_of(piece)});
  if (piece.begins_layer()) ops_->round(stream, sum, a.attended_gradient);
}

void Model::backward_gelu(StreamHandle stream, const BlockPiece& piece, DeviceTensor w, DeviceTensor up,
                          Activations& a) {
  const MatmulSize size = size_of(piece, a);
  if (piece.is_whole())
    return ops_->linear_gelu_backward(stream, size, a.rounded_gradient, w, up, a.wide_gradient);
  ops_->linear_backward(stream, size, a.rounded_gradient, w, {a.summed_gradient, write_of(piece)});
  if (piece.begins_layer()) ops_->gelu_backward(stream, a.summed_gradient, up, a.wide_gradient);
}

void Model::backward_norm(StreamHandle stream, DeviceTensor x, DeviceTensor statistics, DeviceTensor gain,
                          const PieceGradients& gradients, Activations& a) {
  const DeviceTensor dbranch = a.branch_gradient;
  ops_->layer_norm_backward(stream, {rows(a), config_.width},
                            {.x = x,
                             .gain = gain,
                             .statistics = statistics,
                             .dy = dbranch,
                             .dx = dbranch,
                             .dgain = gradients.first,
                             .db = gradients.second});
  ops_->add(stream, dbranch, a.residual_gradient);
}

void Model::forward_head(StreamHandle stream, std::span<const DeviceTensor> weights, Activations& a) {
  const std::uint32_t n = rows(a), width = config_.width;
  ops_->layer_norm(stream, {n, width}, a.residual.back(), weights[norm_gain], weights[norm_bias],
                   a.final_norm, a.final_norm_statistics);
  ops_->linear(stream, {n, width, ModelConfig::vocabulary}, {a.final_norm, weights[tied_embedding], {}},
               a.logits);
  ops_->cross_entropy(stream, {n, ModelConfig::vocabulary}, a.logits, a.targets, a.losses);
}

void Model::backward_head(StreamHandle stream, std::span<const DeviceTensor> weights,
                          std::span<const Gradient> gradients, Activations& a, float loss_scale) {
  const std::uint32_t n = rows(a), width = config_.width;
  const MatmulSize output{n, width, ModelConfig::vocabulary};
  const DeviceTensor dlogits = a.logits_gradient;
  ops_->cross_entropy_backward(stream, {n, ModelConfig::vocabulary}, a.logits, a.targets,
                               loss_scale / static_cast<float>(n), dlogits);
  ops_->linear_gradients(stream, output, dlogits, a.final_norm, gradients[tied_embedding], {});
  ops_->linear_backward(stream, output, dlogits, weights[tied_embedding], {a.residual_gradient});
  ops_->layer_norm_backward(stream, {n, width},
                            {.x = a.residual.back(),
                             .gain = weights[norm_gain],
                             .statistics = a.final_norm_statistics,
                             .dy = a.residual_gradient,
                             .dx = a.residual_gradient,
                             .dgain = gradients[norm_gain],
                             .db = gradients[norm_bias]});
}

}  // namespace gpt
