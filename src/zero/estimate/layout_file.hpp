#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <filesystem>
#include <string>
#include <string_view>

namespace penstock::zero::estimate {

/// A model that a file describes, see docs/estimate.md. The text is Hjson as that of a configuration: JSON that may
/// have comments. Example:
///
///     {
///       "units": [
///         {"name": "embedding", "parameters": [{"name": "tokens", "shape": [32000, 4096]}]},
///         {"name": "block", "repeat": 32, "parameters": [{"name": "up", "shape": [11008, 4096]},
///                                                        {"name": "norm", "count": 4096, "group": 1}]},
///         {"name": "head", "parameters": [{"name": "norm", "count": 4096, "group": 1}],
///          "shared": [{"unit": "embedding", "parameter": "tokens"}]}
///       ],
///       "checkpoints": {"count": 32, "size": "16MiB"}
///     }
struct LayoutFile {
  /// Units and parameters of a file, at most.
  static constexpr std::uint64_t parameters_max = 1 << 20;
  /// Optimizer groups, at most.
  static constexpr std::uint64_t groups_max = 1 << 16;

  /// Strict: an unknown key is an error. `name` stands for the file's in messages.
  ///
  /// Errors: invalid_config, with every error of the file, its path and its line; those of ModelLayout::validate().
  [[nodiscard]] static Result<ModelLayout> parse(std::string_view text, const std::string& name);
  /// Reads a file of at most 16 MiB. Errors: as parse(), and those of the system.
  [[nodiscard]] static Result<ModelLayout> read(const std::filesystem::path& file);
  /// The text that parse() makes `model` of, but for the settings of optimizer groups, on one line. `model` is valid.
  [[nodiscard]] static std::string text(const ModelLayout& model);
};

}  // namespace penstock::zero::estimate
