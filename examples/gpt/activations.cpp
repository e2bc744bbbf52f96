#include "gpt/activations.hpp"

#include <utility>

namespace gpt {

using penstock::ByteCount;
using penstock::DeviceSpan;
using penstock::DeviceTensor;
using penstock::DType;

// Calls place(bytes) for each tensor in a fixed order: once to compute the total size, once to assign the ranges.
template <class Place>
void Activations::lay_out(const ModelConfig& config, const Options& options, Place place) {
  sequences = options.sequences;
  const std::uint64_t rows = std::uint64_t{sequences} * config.context;
  const auto floats = [&](std::uint64_t count) {
    return DeviceTensor{place(ByteCount(count * 4)), DType::fp32};
  };
  const auto operand = [&](std::uint64_t columns) {
    return DeviceTensor{place(size_of(options.operands) * (rows * columns)), options.operands};
  };
  const bool rounds = options.operands != DType::fp32;
  const std::uint64_t width = config.width;

  tokens = place(ByteCount(rows));
  targets = place(ByteCount(rows));
  residual.clear();
  blocks_.clear();
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    residual.push_back(floats(rows * width));
    if (options.checkpoint && layer > 0) continue;
    blocks_.push_back({.norm1 = operand(width),
                       .norm1_statistics = floats(2 * rows),
                       .qkv = operand(3 * width),
                       .log_sums = floats(rows * config.heads),
                       .attended = operand(width),
                       .middle = floats(rows * width),
                       .norm2 = operand(width),
                       .norm2_statistics = floats(2 * rows),
                       .up = operand(4 * width),
                       .gelu = operand(4 * width)});
  }
  residual.push_back(floats(rows * width));
  final_norm = operand(width);
  final_norm_statistics = floats(2 * rows);
  logits = floats(rows * ModelConfig::vocabulary);
  losses = floats(rows);
  logits_gradient = rounds ? operand(ModelConfig::vocabulary) : logits;
  residual_gradient = floats(rows * width);
  rounded_gradient = rounds ? operand(width) : residual_gradient;
  branch_gradient = floats(rows * width);
  attended_gradient = {branch_gradient.bytes.subspan({}, rounded_gradient.bytes.size()), options.operands};
  wide_gradient = operand(4 * width);
  projections = floats(rows * config.heads);
}

namespace {
constexpr penstock::Alignment alignment{256};
}

ByteCount Activations::size(const ModelConfig& config, const Options& options) {
  ByteCount end;
  Activations().lay_out(config, options, [&](ByteCount bytes) {
    end += round_up(bytes, alignment);
    return DeviceSpan({}, bytes);
  });
  return end;
}

penstock::Result<Activations> Activations::allocate(const ModelConfig& config, const Options& options,
                                                    DeviceAllocator& allocator) {
  PENSTOCK_TRY_ASSIGN(auto buffer, allocator.allocate(size(config, options)));

  Activations activations;
  activations.buffer_ = std::move(buffer);
  ByteCount end;
  activations.lay_out(config, options, [&](ByteCount bytes) {
    const ByteCount begin = std::exchange(end, end + round_up(bytes, alignment));
    return activations.buffer_.bytes.subspan(begin, bytes);
  });
  return activations;
}

Activations::Block& Activations::open_block(std::size_t layer) {
  shared_by_ = layer;
  return blocks_.size() == 1 ? blocks_.front() : blocks_[layer];
}

Activations::Block* Activations::find_block(std::size_t layer) {
  if (blocks_.size() > 1) return &blocks_[layer];
  return shared_by_ == layer ? &blocks_.front() : nullptr;
}

}  // namespace gpt
