#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>
#include <penstock/zero/config/config.hpp>

#include <cstdint>
#include <optional>

namespace gpt {

/// Low-rank adapters of the attention's layers, qkv and proj (LoRA, Hu et al. 2021): to a layer's output y they add
/// alpha / rank · (x · aᵀ) · bᵀ, with a[rank, inputs] and b[outputs, rank]. They alone are trained: all parameters of
/// the model without them are frozen.
struct LoraConfig {
  std::uint32_t rank = 8;
  float alpha = 8;

  [[nodiscard]] float scale() const { return alpha / static_cast<float>(rank); }
};

/// A GPT-2-like model over bytes. The defaults are those of the demonstration: 28.6 M parameters.
struct ModelConfig {
  static constexpr std::uint32_t vocabulary = 256;

  std::uint32_t layers = 4;
  std::uint32_t width = 768;  ///< a multiple of heads
  std::uint32_t heads = 12;
  std::uint32_t context = 128;  ///< tokens per sequence
  std::uint64_t seed = 1;       ///< of the initial values
  /// Maximum number of elements of a unit of a block, penstock.unit_elements_max. A block above it is several units,
  /// and matrices above it are cut into row blocks. 0: each block is one unit.
  penstock::ElementCount unit_elements_max = {};
  std::optional<LoraConfig> lora = {};

  /// Errors: invalid_argument, for a zero, a value above those with which sizes in bytes fit into 64 bits, a width
  /// that is not a multiple of heads, a rank above the width, an alpha that is not above 0, and a limit below that of
  /// the smallest row block.
  [[nodiscard]] penstock::Result<void> validate() const;
};

/// Shapes of models, by their number of parameters.
struct ModelPreset {
  const char* name;
  ModelConfig model;
};
inline constexpr ModelPreset model_presets[] = {
    {"30m", {.layers = 4, .width = 768, .heads = 12, .context = 128}},
    {"124m", {.layers = 16, .width = 800, .heads = 10, .context = 1024}},
    {"1b", {.layers = 20, .width = 2048, .heads = 16, .context = 1024}},
    {"7b", {.layers = 35, .width = 4096, .heads = 32, .context = 1024}},
};

/// How a training runs; ds_config.json has the optimizer's settings. The defaults are those of the demonstration.
struct TrainingConfig {
  std::uint32_t ranks = 2;
  std::uint32_t micro_batches = 2;      ///< per step and rank
  std::uint32_t sequences = 2;          ///< per micro-batch
  bool checkpoint_activations = false;  ///< see Activations::Options
  bool offload_activations = false;     ///< checkpoints are the engine's, see Engine::checkpoint()
  /// Each unit runs all micro-batches of a step before the next unit does, so that its parameters are gathered as often
  /// as for one micro-batch ("layered gradient accumulation", Lamy-Poirier 2021).
  bool layer_by_layer = false;
  std::uint32_t steps = 48;
  std::uint32_t warmup_steps = 6;  ///< of learning_rate()
  std::uint64_t data_seed = 1;

  /// The micro-batches whose activations exist at a time.
  [[nodiscard]] std::uint32_t micro_batches_at_a_time() const { return layer_by_layer ? micro_batches : 1; }

  /// Errors: invalid_argument, for zero or too many ranks, micro-batches or sequences.
  [[nodiscard]] penstock::Result<void> validate() const;

  /// That of a step, counted from 0: it rises linearly to optimizer.params.lr, then falls linearly to zero at `steps`.
  /// None if the configuration has a scheduler.
  [[nodiscard]] std::optional<double> learning_rate(const penstock::zero::Config& config,
                                                    std::uint32_t step) const;
};

}  // namespace gpt
