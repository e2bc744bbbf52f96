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
  const auto wide = [&](std::uint64_t factor) { return floats(rows * config.width * factor); };

  tokens = place(ByteCount(rows));
  targets = place(ByteCount(rows));
  residual.clear();
  blocks_.clear();
  for (std::uint32_t layer = 0; layer < config.layers; ++layer) {
    residual.push_back(wide(1));
    if (options.checkpoint && layer > 0) continue;
    blocks_.push_back({.norm1 = wide(1),
                       .norm1_statistics = floats(2 * rows),
                       .qkv = wide(3),
                       .log_sums = floats(rows * config.heads),
                       .attended = wide(1),
                       .middle = wide(1),
                       .norm2 = wide(1),
                       .norm2_statistics = floats(2 * rows),
                       .up = wide(4),
                       .gelu = wide(4)});
  }
  residual.push_back(wide(1));
  final_norm = wide(1);
  final_norm_statistics = floats(2 * rows);
  logits = floats(rows * ModelConfig::vocabulary);
  losses = floats(rows);
  residual_gradient = wide(1);
  branch_gradient = wide(1);
  wide_gradient = wide(4);
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
