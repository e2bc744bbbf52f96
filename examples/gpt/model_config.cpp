#include "gpt/model_config.hpp"

#include "gpt/block_pieces.hpp"

#include <cmath>
#include <string>

namespace gpt {

using penstock::Error;
using penstock::Result;

namespace {

// The activations of one rank with all values at their maximum have fewer than 2^63 bytes.
constexpr std::uint32_t layers_max = 1 << 12, width_max = 1 << 16, heads_max = 1 << 9, context_max = 1 << 16;
constexpr std::uint32_t ranks_max = 64, micro_batches_max = 1 << 20, sequences_max = 1 << 10;

Result<void> check_range(const char* operation, const char* name, std::uint32_t value, std::uint32_t most) {
  if (value >= 1 && value <= most) return penstock::ok();
  return Error::invalid_argument(operation).object(name).wanted("1 to " + std::to_string(most)).got(value);
}

Result<void> check_lora(const char* operation, const LoraConfig& lora, std::uint32_t width) {
  if (lora.rank < 1 || lora.rank > width) {
    return Error::invalid_argument(operation)
        .object("rank of the adapters (--lora)")
        .wanted("1 to " + std::to_string(width) + ", the width")
        .got(lora.rank)
        .advice("ranks of 8 to 64 are usual");
  }
  if (std::isfinite(lora.alpha) && lora.alpha > 0) return penstock::ok();
  return Error::invalid_argument(operation)
      .object("--lora-alpha")
      .wanted("above 0")
      .got(std::to_string(lora.alpha))
      .advice("leave it out for that of the rank");
}

}  // namespace

Result<void> ModelConfig::validate() const {
  constexpr const char* operation = "ModelConfig::validate";
  PENSTOCK_TRY(check_range(operation, "layers", layers, layers_max));
  PENSTOCK_TRY(check_range(operation, "width", width, width_max));
  PENSTOCK_TRY(check_range(operation, "heads", heads, heads_max));
  PENSTOCK_TRY(check_range(operation, "context", context, context_max));
  if (width % heads != 0) {
    return Error::invalid_argument(operation)
        .object("width")
        .wanted("a multiple of " + std::to_string(heads) + " heads")
        .got(width);
  }
  if (lora) PENSTOCK_TRY(check_lora(operation, *lora, width));
  PENSTOCK_TRY(block_pieces(*this));
  return penstock::ok();
}

Result<void> TrainingConfig::validate() const {
  constexpr const char* operation = "TrainingConfig::validate";
  PENSTOCK_TRY(check_range(operation, "ranks", ranks, ranks_max));
  PENSTOCK_TRY(check_range(operation, "micro-batches (gradient_accumulation_steps)", micro_batches,
                           micro_batches_max));
  PENSTOCK_TRY(check_range(operation, "sequences of a micro-batch (train_micro_batch_size_per_gpu)",
                           sequences, sequences_max));
  if (!layer_by_layer || micro_batches <= sequences_max / sequences) return penstock::ok();
  return Error::invalid_argument(operation)
      .object("sequences of all micro-batches of a step, whose activations exist at a time")
      .wanted("at most " + std::to_string(sequences_max))
      .got(std::uint64_t{micro_batches} * sequences)
      .advice("lower gradient_accumulation_steps, or do not accumulate layer by layer");
}

std::optional<double> TrainingConfig::learning_rate(const penstock::zero::Config& config,
                                                    std::uint32_t step) const {
  if (!std::holds_alternative<std::monostate>(config.scheduler)) return std::nullopt;
  const auto most = static_cast<float>(config.optimizer.learning_rate);
  const auto ratio = [](std::uint32_t part, std::uint32_t whole) {
    return static_cast<float>(part) / static_cast<float>(whole);
  };
  if (step < warmup_steps) return most * ratio(step + 1, warmup_steps);
  return most * ratio(steps - step, steps - warmup_steps);
}

}  // namespace gpt
