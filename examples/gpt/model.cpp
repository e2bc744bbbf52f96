#include "gpt/model.hpp"

#include <string>

namespace gpt {

namespace {

using penstock::Error;
using penstock::Result;

// The tensors of a block, in the order of its description.
enum BlockTensor : std::size_t {
  norm1_gain,
  norm1_bias,
  qkv_weight,
  qkv_bias,
  proj_weight,
  proj_bias,
  norm2_gain,
  norm2_bias,
  up_weight,
  up_bias,
  down_weight,
  down_bias,
};
enum EmbedTensor : std::size_t { token_embedding, position_embedding };
enum HeadTensor : std::size_t { norm_gain, norm_bias, tied_embedding };

}  // namespace

Result<Model> Model::create(const ModelConfig& config, Ops& ops) {
  PENSTOCK_TRY(config.validate());
  const std::uint32_t head_width = config.width / config.heads;
  const auto [most, multiple] = ops.limits();
  if (head_width <= most && head_width % multiple == 0) return Model(config, ops);
  return Error::invalid_argument("Model::create")
      .object("width of a head (--width / --heads)")
      .wanted("a multiple of " + std::to_string(multiple) + ", at most " + std::to_string(most) +
              ", on this device")
      .got(head_width);
}

Result<void> Model::check(const char* operation, std::size_t unit,
                          std::span<const DeviceTensor> weights) const {
  if (unit >= description_.units().size()) {
    return Error::invalid_argument(operation)
        .object("unit")
        .wanted("below " + std::to_string(description_.units().size()))
        .got(unit);
  }
  const UnitDescription& described = description_.units()[unit];
  if (weights.size() != described.tensor_count()) {
    return Error::invalid_argument(operation)
        .object(described.name)
        .reason("number of tensors differs")
        .wanted(described.tensor_count())
        .got(weights.size());
  }
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const std::size_t owned = described.parameters.size();
    const ParameterDescription& parameter =
        i < owned ? described.parameters[i] : description_.parameter(described.uses[i - owned]);
    if (weights[i].count() != parameter.count) {
      return Error::invalid_argument(operation)
          .object(described.name + "." + parameter.name)
          .wanted(parameter.count)
          .got(weights[i].count());
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
    forward_block(stream, unit - 1, weights, activations);
  }
  return ops_->status();
}

Result<void> Model::backward(StreamHandle stream, std::size_t unit, std::span<const DeviceTensor> weights,
                             std::span<const Gradient> gradients, Activations& activations,
                             float loss_scale) {
  PENSTOCK_TRY(check("Model::backward", unit, weights));
  std::vector<DeviceTensor> tensors;
  for (const Gradient& gradient : gradients) tensors.push_back(gradient.tensor);
  PENSTOCK_TRY(check("Model::backward (gradients)", unit, tensors));

  if (unit == 0) {
    backward_embed(stream, gradients, activations);
  } else if (is_head(unit)) {
    backward_head(stream, weights, gradients, activations, loss_scale);
  } else {
    backward_block(stream, unit - 1, weights, gradients, activations);
  }
  return ops_->status();
}

DeviceTensor Model::rounded_gradient(StreamHandle stream, const Activations& a) {
  if (ops_->operand_dtype() != penstock::DType::fp32)
    ops_->round(stream, a.residual_gradient, a.rounded_gradient);
  return a.rounded_gradient;
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

void Model::forward_block(StreamHandle stream, std::size_t layer, std::span<const DeviceTensor> weights,
                          Activations& a) {
  forward_branches(stream, layer, weights, a);
  const Activations::Block& block = *a.find_block(layer);
  ops_->linear_add(stream, {rows(a), 4 * config_.width, config_.width},
                   {block.gelu, weights[down_weight], weights[down_bias]}, block.middle,
                   a.residual[layer + 1]);
}

void Model::forward_branches(StreamHandle stream, std::size_t layer, std::span<const DeviceTensor> weights,
                             Activations& a) {
  const std::uint32_t n = rows(a), width = config_.width;
  const AttentionSize attention{a.sequences, config_.context, config_.heads, width};
  const Activations::Block& block = a.open_block(layer);
  const DeviceTensor in = a.residual[layer];

  ops_->layer_norm(stream, {n, width}, in, weights[norm1_gain], weights[norm1_bias], block.norm1,
                   block.norm1_statistics);
  ops_->linear(stream, {n, width, 3 * width}, {block.norm1, weights[qkv_weight], weights[qkv_bias]},
               block.qkv);
  ops_->attention(stream, attention, block.qkv, block.log_sums, block.attended);
  ops_->linear_add(stream, {n, width, width}, {block.attended, weights[proj_weight], weights[proj_bias]}, in,
                   block.middle);

  ops_->layer_norm(stream, {n, width}, block.middle, weights[norm2_gain], weights[norm2_bias], block.norm2,
                   block.norm2_statistics);
  ops_->linear_gelu(stream, {n, width, 4 * width}, {block.norm2, weights[up_weight], weights[up_bias]},
                    block.up, block.gelu);
}

void Model::backward_block(StreamHandle stream, std::size_t layer, std::span<const DeviceTensor> weights,
                           std::span<const Gradient> gradients, Activations& a) {
  const std::uint32_t n = rows(a), width = config_.width;
  const AttentionSize attention{a.sequences, config_.context, config_.heads, width};
  const MatmulSize qkv{n, width, 3 * width}, proj{n, width, width}, up{n, width, 4 * width},
      down{n, 4 * width, width};
  if (a.find_block(layer) == nullptr) forward_branches(stream, layer, weights, a);
  const Activations::Block& block = *a.find_block(layer);
  const DeviceTensor dbranch = a.branch_gradient, dup = a.wide_gradient;
  const DeviceTensor dqkv = a.wide_gradient.slice({}, block.qkv.count());

  // The gradient of the block's output.
  DeviceTensor dstream = rounded_gradient(stream, a);
  ops_->linear_gradients(stream, down, dstream, block.gelu, gradients[down_weight], gradients[down_bias]);
  ops_->linear_gelu_backward(stream, down, dstream, weights[down_weight], block.up, dup);
  ops_->linear_gradients(stream, up, dup, block.norm2, gradients[up_weight], gradients[up_bias]);
  ops_->linear_backward(stream, up, dup, weights[up_weight], dbranch);
  ops_->layer_norm_backward(stream, {n, width},
                            {.x = block.middle,
                             .gain = weights[norm2_gain],
                             .statistics = block.norm2_statistics,
                             .dy = dbranch,
                             .dx = dbranch,
                             .dgain = gradients[norm2_gain],
                             .db = gradients[norm2_bias]});
  ops_->add(stream, dbranch, a.residual_gradient);

  // That of its middle.
  dstream = rounded_gradient(stream, a);
  ops_->linear_gradients(stream, proj, dstream, block.attended, gradients[proj_weight], gradients[proj_bias]);
  ops_->linear_backward(stream, proj, dstream, weights[proj_weight], a.attended_gradient);
  ops_->attention_backward(stream, attention,
                           {.qkv = block.qkv,
                            .log_sums = block.log_sums,
                            .y = block.attended,
                            .dy = a.attended_gradient,
                            .projections = a.projections,
                            .dqkv = dqkv});
  ops_->linear_gradients(stream, qkv, dqkv, block.norm1, gradients[qkv_weight], gradients[qkv_bias]);
  ops_->linear_backward(stream, qkv, dqkv, weights[qkv_weight], dbranch);
  ops_->layer_norm_backward(stream, {n, width},
                            {.x = a.residual[layer],
                             .gain = weights[norm1_gain],
                             .statistics = block.norm1_statistics,
                             .dy = dbranch,
                             .dx = dbranch,
                             .dgain = gradients[norm1_gain],
                             .db = gradients[norm1_bias]});
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
  ops_->linear_backward(stream, output, dlogits, weights[tied_embedding], a.residual_gradient);
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
