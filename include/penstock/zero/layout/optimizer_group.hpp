#pragma once

#include <penstock/base/result.hpp>

#include <array>
#include <optional>
#include <span>
#include <string>

namespace penstock::zero {

/// Settings of the parameters of an optimizer group. What is empty is as the configuration says.
struct OptimizerGroup {
  /// The parameters keep their values: they have no gradient and no optimizer states, and their values are of the
  /// configuration's dtype, because there is no master. Fixed for the life of an engine.
  bool frozen = false;
  /// For optimizer.type "Muon": the parameters, which are matrices, are updated by Muon, the other groups' by AdamW; as
  /// the attribute use_muon of DeepSpeed's parameters. A matrix is never divided among ranks: each rank has some of a
  /// unit's whole ones, as many as the others, in slots of the largest one's size. So a unit with fewer matrices than
  /// ranks, or with matrices of different sizes, has padding, which is gathered too. Without effect if frozen. Fixed
  /// for the life of an engine.
  bool use_muon = false;
  double learning_rate_factor = 1;  ///< of the step's learning rate, whether scheduled or given
  /// Of the moments; a scheduler does not move them then. [0] is Muon's momentum, which no scheduler moves.
  std::optional<std::array<double, 2>> betas;
  std::optional<double> epsilon;       ///< not with use_muon
  std::optional<double> weight_decay;  ///< 0: none

  friend bool operator==(const OptimizerGroup&, const OptimizerGroup&) = default;
};

/// Errors: invalid_argument of `operation`, naming the group and the setting: not finite in single precision, negative,
/// a beta that is not below 1, or an epsilon with use_muon.
[[nodiscard]] Result<void> validate(const char* operation, std::span<const OptimizerGroup> groups);

/// The settings that are not empty: "learning_rate_factor 1 weight_decay 0".
[[nodiscard]] std::string to_string(const OptimizerGroup& group);

}  // namespace penstock::zero
