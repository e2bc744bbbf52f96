#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::estimate {

/// The shapes of a published decoder-only transformer.
struct ModelShape {
  /// gpt2: learned positions, layer norms with bias, one matrix for query, key and value, biases everywhere.
  /// llama: gated MLP, norms without bias; Qwen adds biases to query, key and value, Mixtral replaces the MLP by
  /// experts and a router.
  enum class Family : std::uint8_t { gpt2, llama };

  std::string_view name;
  Family family = Family::llama;
  std::uint64_t hidden = 0, intermediate = 0, layers = 0, heads = 0, kv_heads = 0, vocabulary = 0;
  std::uint64_t positions = 0;                            ///< gpt2 only
  std::uint64_t experts = 0;                              ///< 0: one MLP
  std::uint64_t experts_of_token = experts == 0 ? 0 : 2;  ///< that compute each token
  bool tied = false;                                      ///< the head uses the embedding's matrix
  bool qkv_bias = false;                                  ///< llama only
  std::string_view source;                                ///< of the shapes
  std::string_view alias = {};                            ///< a second model of these shapes
};

/// All presets, in the order of the documentation.
[[nodiscard]] std::span<const ModelShape> model_presets();

/// The preset of that name, in any case; null if there is none.
[[nodiscard]] const ModelShape* find_preset(std::string_view name);

/// The same for `option`, which needs the shapes of a model. Errors: invalid_argument, naming it.
[[nodiscard]] Result<const ModelShape*> find_shape(const std::string& name, const char* option);

/// Names and aliases.
[[nodiscard]] std::vector<std::string_view> preset_names();

/// The layout as a trainer makes it: the embedding, each block, and the last norm with the head, each a unit.
/// Matrices are of group 0; norms and biases, which have no weight decay, of group 1. Parameters have the names of
/// Hugging Face's files. A tied head shares the embedding's matrix.
[[nodiscard]] ModelLayout layout_of(const ModelShape& shape);

/// The groups of such a layout.
[[nodiscard]] std::vector<OptimizerGroup> groups_by_decay();

}  // namespace penstock::zero::estimate
