#include "gpt/activations.hpp"

#include "gpt/block_pieces.hpp"

#include <algorithm>

namespace gpt {

using penstock::ByteCount;
using penstock::DeviceSpan;
using penstock::DType;

namespace {

constexpr penstock::Alignment alignment{256};

/// The columns of summed_gradient.
std::uint64_t summed_columns(const ModelConfig& config) {
  const auto units = block_pieces(config).value();
  const bool cuts = std::any_of(units.begin(), units.end(), [](const std::vector<BlockPiece>& pieces) {
    return std::any_of(pieces.begin(), pieces.end(), [](const BlockPiece& piece) {
      const bool operand = piece.kind == BlockPiece::Kind::proj || piece.kind == BlockPiece::Kind::down;
      return operand && !piece.is_whole();
    });
  });
  return cuts ? 4 * std::uint64_t{config.width} : config.lora ? config.width : 0;
}

std::uint64_t rank_of(const ModelConfig& config) {
  return config.lora ? config.lora->rank : 0;
}

}  // namespace

/// Consecutive ranges of a buffer, or their total size where there is no buffer yet.
class Activations::Places {
 public:
  Places() = default;
  explicit Places(DeviceBuffer buffer) : buffer_(std::move(buffer)) {}

  DeviceSpan take(ByteCount bytes) {
    const ByteCount begin = end_;
    end_ += round_up(bytes, alignment);
    return buffer_.bytes.empty() ? DeviceSpan({}, bytes) : buffer_.bytes.subspan(begin, bytes);
  }
  [[nodiscard]] ByteCount end() const { return end_; }
  [[nodiscard]] const DeviceBuffer& buffer() const { return buffer_; }

 private:
  DeviceBuffer buffer_;
  ByteCount end_;
};

namespace {

/// Places tensors of one micro-batch.
template <class Places>
struct Tensors {
  Places& places;
  DType operands;
  std::uint64_t rows;

  penstock::DeviceTensor floats(std::uint64_t count) const {
    return {places.take(ByteCount(count * 4)), DType::fp32};
  }
  penstock::DeviceTensor operand(std::uint64_t columns) const {
    return {places.take(size_of(operands) * (rows * columns)), operands};
  }
  Activations::Block block(const ModelConfig& config) const {
    const std::uint64_t width = config.width;
    return {.norm1 = operand(width),
            .norm1_statistics = floats(2 * rows),
            .qkv = operand(3 * width),
            .log_sums = floats(rows * config.heads),
            .attended = operand(width),
            .middle = floats(rows * width),
            .norm2 = operand(width),
            .norm2_statistics = floats(2 * rows),
            .up = operand(4 * width),
            .gelu = operand(4 * width),
            .qkv_adapted = operand(rank_of(config)),
            .proj_adapted = operand(rank_of(config))};
  }
};

std::uint64_t rows_of(const ModelConfig& config, const Activations::Options& options) {
  return std::uint64_t{options.sequences} * config.context;
}

}  // namespace

void Activations::lay_out_kept(const ModelConfig& config, const Options& options, Places& places) {
  const std::uint64_t rows = rows_of(config, options), width = config.width;
  const Tensors<Places> take{places, options.operands, rows};
  sequences = options.sequences;
  tokens = places.take(ByteCount(rows));
  targets = places.take(ByteCount(rows));
  residual.assign(config.layers + 1, {});
  if (!options.offload) {
    for (penstock::DeviceTensor& input : residual) input = take.floats(rows * width);
  }
  if (!options.checkpoint) {
    blocks_.clear();
    for (std::uint32_t layer = 0; layer < config.layers; ++layer) blocks_.push_back(take.block(config));
  }
  final_norm = take.operand(width);
  final_norm_statistics = take.floats(2 * rows);
  logits = take.floats(rows * ModelConfig::vocabulary);
  losses = take.floats(rows);
  residual_gradient = take.floats(rows * width);
  if (options.operands == DType::fp32) {
    logits_gradient = logits;
    rounded_gradient = residual_gradient;
  }
}

void Activations::lay_out_shared(const ModelConfig& config, const Options& options, Places& places) {
  const std::uint64_t rows = rows_of(config, options), width = config.width;
  const Tensors<Places> take{places, options.operands, rows};
  if (options.checkpoint) blocks_ = {take.block(config)};
  if (options.operands != DType::fp32) {
    logits_gradient = take.operand(ModelConfig::vocabulary);
    rounded_gradient = take.operand(width);
  }
  branch_gradient = take.floats(rows * width);
  attended_gradient = {branch_gradient.bytes.subspan({}, size_of(options.operands) * (rows * width)),
                       options.operands};
  wide_gradient = take.operand(4 * width);
  projections = take.floats(rows * config.heads);
  adapted_gradient = take.operand(rank_of(config));
  summed_gradient = take.floats(rows * summed_columns(config));
}

std::vector<Activations> Activations::lay_out(const ModelConfig& config, const Options& options,
                                              Places& places) {
  const bool shares = block_pieces(config).value().size() == 1;
  std::vector<Activations> all(options.micro_batches);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i > 0 && shares) {
      all[i] = all.front();
    } else {
      all[i].lay_out_shared(config, options, places);
    }
    all[i].lay_out_kept(config, options, places);
    all[i].buffer_ = places.buffer();
  }
  return all;
}

ByteCount Activations::size(const ModelConfig& config, const Options& options) {
  Places places;
  (void)lay_out(config, options, places);
  return places.end();
}

penstock::Result<std::vector<Activations>> Activations::allocate(const ModelConfig& config,
                                                                 const Options& options,
                                                                 DeviceAllocator& allocator) {
  PENSTOCK_TRY_ASSIGN(auto buffer, allocator.allocate(size(config, options)));
  Places places(std::move(buffer));
  return lay_out(config, options, places);
}

}  // namespace gpt
