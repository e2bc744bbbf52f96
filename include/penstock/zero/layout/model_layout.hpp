#pragma once

#include <penstock/base/dtype.hpp>
#include <penstock/base/result.hpp>
#include <penstock/zero/layout/optimizer_group.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// Identifies a parameter by its place in the layout.
struct ParameterId {
  std::uint32_t unit = 0;   ///< its owner
  std::uint32_t index = 0;  ///< among the owner's parameters
  bool operator==(const ParameterId&) const = default;
  auto operator<=>(const ParameterId&) const = default;
};

struct ParameterLayout {
  std::string name;         ///< not empty; "unit.parameter" is its name in the model, of which there is one
  ElementCount count;       ///< > 0
  std::uint32_t group = 0;  ///< optimizer group, an index into ModelLayout::groups
  /// Its dimensions, row-major, of which `count` is the product; empty: one, of `count`. An export writes them, and
  /// OptimizerGroup::use_muon takes two: a stack of matrices, such as those of experts, is one parameter for each.
  std::vector<std::uint64_t> shape = {};

  [[nodiscard]] bool is_matrix() const { return shape.size() == 2; }
  [[nodiscard]] std::uint64_t rows() const { return is_matrix() ? shape[0] : 0; }
  [[nodiscard]] std::uint64_t columns() const { return is_matrix() ? shape[1] : 0; }
};

/// Parameters that are gathered, used and released together, usually one layer. Leases and gradients list them in this
/// order: `parameters`, then `shared`.
struct UnitLayout {
  std::string name;  ///< not empty
  std::vector<ParameterLayout> parameters;
  /// Parameters of other units that this unit uses too, such as tied embeddings.
  std::vector<ParameterId> shared = {};
};

/// The activation checkpoints of one step and rank, see Engine::checkpoint(). All are of one size.
struct CheckpointLayout {
  std::uint32_t count = 0;  ///< 0: the trainer keeps its own
  ByteCount size;           ///< of each; > 0, if there are any
  /// How many the trainer leases at a time, at most; > 0. The device has room for one more at least.
  std::uint32_t leased_max = 2;
  std::uint32_t reads =
      1;  ///< of each in a micro-batch, for the prediction of the disk's traffic; at most 65536
};

/// The units of a model in the order of the forward pass.
struct ModelLayout {
  std::vector<UnitLayout> units;
  std::vector<OptimizerGroup> groups = {{}};
  CheckpointLayout checkpoints = {};

  [[nodiscard]] ElementCount element_count() const;
  /// One without name and elements, if the layout has no such parameter.
  [[nodiscard]] const ParameterLayout& parameter(ParameterId id) const;

  /// The parameters of a unit in the order of leases and gradients: its own, then those it shares. None, if the layout
  /// has no such unit.
  [[nodiscard]] std::vector<ParameterId> parameters_of(std::uint32_t unit) const;

  /// Errors: invalid_argument, with the unit, parameter or group: no units, no elements, a shared parameter or group
  /// that does not exist, a setting of a group that no optimizer takes, a shape whose product is not the count or that
  /// has too many dimensions, a group with use_muon whose parameter is no matrix, parameters without a name or with the
  /// same, a parameter that a unit shares with itself or lists twice, checkpoints of no size, and more elements or
  /// bytes than the limits below.
  [[nodiscard]] Result<void> validate() const;

  /// Limits that validate() checks: 68 billion elements of a unit, 4.4 trillion of a model, a million checkpoints, and
  /// 16 TiB of them.
  static constexpr ElementCount unit_elements_max{std::uint64_t{1} << 36};
  static constexpr std::uint64_t matrix_side_max =
      (std::uint64_t{1} << 31) - 1;  ///< with use_muon: rows, and columns
  static constexpr std::size_t dimensions_max = 8;
  static constexpr ElementCount model_elements_max{std::uint64_t{1} << 42};
  static constexpr std::uint32_t checkpoints_max = 1 << 20;
  static constexpr ByteCount checkpoint_bytes_max{std::uint64_t{1} << 44};  ///< of all checkpoints
};

}  // namespace penstock::zero
