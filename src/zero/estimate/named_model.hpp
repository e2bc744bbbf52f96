#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero::estimate {

/// A model for an estimate.
struct NamedModel {
  std::string name;    ///< of the preset or of the file
  std::string source;  ///< "preset", "safetensors header" or "layout file"
  ModelLayout layout;
  std::vector<std::string> notes;  ///< what was assumed of it
  std::uint64_t experts_of_token =
      0;  ///< of a preset: how many compute each token; 0: not known, or no experts

  /// Loads the model that an argument means: the preset of that name; else a .safetensors file, an index of such files,
  /// a directory with one of them, or else a layout file.
  ///
  /// Errors: not_found, for neither a preset nor a file, with the nearest name; those of the readers.
  [[nodiscard]] static Result<NamedModel> load(const std::string& argument);

  /// Elements of the parameters that a token uses, if `given` experts of each layer compute it; 0: those of the preset.
  /// All elements where there are no experts, or where their number is not known, which is noted.
  ///
  /// Errors: invalid_argument, for experts of a model without any.
  [[nodiscard]] Result<ElementCount> used_by_token(std::uint64_t given);

  /// Puts the matrices into an optimizer group with use_muon, but those of embeddings and the head, and notes it.
  ///
  /// Errors: invalid_argument, if there are none.
  Result<void> use_muon();

  /// Parameters of the largest module, which DeepSpeed's estimator calls the largest layer: of those whose names differ
  /// in the last part only, such as "model.layers.3.mlp.up_proj.weight" and ".bias".
  [[nodiscard]] ElementCount largest_module() const;
};

}  // namespace penstock::zero::estimate
