#include "zero/estimate/activations.hpp"

#include <algorithm>

namespace penstock::zero::estimate {

namespace {

constexpr std::uint64_t fp32 = 4;

/// Of a norm for a token: its input, in fp32 for llama's, its output, and what the backward takes from the forward.
std::uint64_t norm_bytes(const ModelShape& shape, std::uint64_t element) {
  if (shape.family == ModelShape::Family::gpt2)
    return 2 * element * shape.hidden + 2 * element;  // mean, deviation
  // The input in fp32, the normalized values and the output, which the weight multiplies.
  return (fp32 + 2 * element) * shape.hidden + fp32;
}

/// Queries, keys, values and the output, and a logarithm for each head.
std::uint64_t attention_bytes(const ModelShape& shape, std::uint64_t element) {
  const std::uint64_t kv = shape.hidden / shape.heads * shape.kv_heads;
  return element * (2 * shape.hidden + 2 * kv) + fp32 * shape.heads;
}

std::uint64_t mlp_bytes(const ModelShape& shape, std::uint64_t element) {
  // The input and four parts of GELU's tanh, of which the last is the input of the second matrix.
  if (shape.family == ModelShape::Family::gpt2) return element * 5 * shape.intermediate;
  const std::uint64_t gated = element * 4 * shape.intermediate;  // gate, its SiLU, up, product
  if (shape.experts == 0) return gated;
  // Of each expert of a token its input and output, the latter also weighted; and the router's weights.
  return shape.experts_of_token * (gated + element * 3 * shape.hidden) + fp32 * (3 * shape.experts + 1);
}

}  // namespace

ActivationSizes activations_of(const ModelShape& shape, DType dtype, std::uint64_t tokens) {
  const std::uint64_t element = size_of(dtype).value();
  const std::uint64_t norm = norm_bytes(shape, element);
  // Logits, the same in fp32, and their logarithmic softmax.
  const std::uint64_t head = norm + (element + 2 * fp32) * shape.vocabulary;
  return {
      .block = ByteCount((2 * norm + attention_bytes(shape, element) + mlp_bytes(shape, element)) * tokens),
      .checkpoint = ByteCount(element * shape.hidden * tokens),
      .head = ByteCount(head * tokens)};
}

double Recomputation::repeated() const {
  return blocks == 0 ? 0 : static_cast<double>(blocks - kept) / static_cast<double>(blocks);
}

Result<Recomputation> plan_recomputation(const ActivationSizes& sizes, std::uint64_t blocks, ByteCount memory,
                                         ByteCount taken) {
  const auto& [block, checkpoint, head] = sizes;
  const auto peak_of = [&, block = block, checkpoint = checkpoint, head = head](std::uint64_t kept) {
    const ByteCount inputs = checkpoint * (blocks - kept);
    const ByteCount forward = block * kept + inputs + head;
    return kept == blocks ? forward : std::max(forward, inputs + block);
  };
  Recomputation plan{.blocks = blocks, .room = memory - std::min(memory, taken), .least = peak_of(0)};
  const ByteCount room = plan.room;
  if (plan.least > room) {
    return Error(ErrorCode::budget_too_small, "plan_recomputation")
        .object("activations")
        .reason("they do not fit on the device, even if every block repeats its forward")
        .wanted(plan.least)
        .got(to_string(room) + " of " + to_string(memory) + ", beside " + to_string(taken) + " of the engine")
        .advice(room.is_zero() ? "give more device memory, or the engine a smaller penstock.device_budget"
                               : "train fewer tokens in a micro-batch, or give more device memory");
  }
  // The peak grows with the kept blocks, but for the first, which may need no more than the one that is repeated.
  std::uint64_t least = 0, most = blocks;
  while (least < most) {
    const std::uint64_t middle = most - (most - least) / 2;
    if (peak_of(middle) <= room)
      least = middle;
    else
      most = middle - 1;
  }
  plan.kept = least;
  plan.peak = peak_of(least);
  return plan;
}

}  // namespace penstock::zero::estimate
