#pragma once

#include <cstdint>

namespace gpt {

/// A GPT-2-like model over bytes. The defaults are those of the demonstration: 25.4 M parameters.
struct ModelConfig {
  static constexpr std::uint32_t vocabulary = 256;

  std::uint32_t layers = 8;
  std::uint32_t width = 512;  ///< a multiple of heads
  std::uint32_t heads = 8;
  std::uint32_t context = 128;  ///< tokens a sequence
  std::uint64_t seed = 1;       ///< of the initial values
};

/// How the demonstration trains it: every figure was found with gpt_plain on two cores.
struct TrainingConfig {
  std::uint32_t ranks = 2;
  std::uint32_t micro_batches = 2;  ///< a step and rank
  std::uint32_t sequences = 2;      ///< a micro-batch
  std::uint32_t steps = 60;
  std::uint32_t warmup_steps = 8;  ///< the rate rises linearly, then stays
  float learning_rate = 1e-3f;
  float beta1 = 0.9f, beta2 = 0.95f, epsilon = 1e-8f;
  float weight_decay = 0.1f;  ///< of matrices and embeddings
  float gradient_norm_max = 1.0f;
  std::uint64_t data_seed = 1;
};

}  // namespace gpt
