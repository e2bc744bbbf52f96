#pragma once

#include "gpt/block_pieces.hpp"
#include "gpt/model_config.hpp"

#include <penstock/base/units.hpp>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace gpt {

/// The initial values of a parameter: a constant plus `deviation` times a random number of mean 0 and variance 1.
struct InitialRule {
  float constant = 0.0f;
  float deviation = 0.0f;
};

/// A parameter, or a row block of one.
struct ParameterDescription {
  std::string name;
  std::string path = {};  ///< of the whole parameter, in a model that is not cut: "block.0.qkv.weight"
  penstock::ElementCount count = {};
  InitialRule initial = {};
  bool weight_decay = false;
  bool frozen = false;  ///< it is not trained, see LoraConfig
  bool is_hidden_matrix = false;
  std::vector<std::uint64_t> shape = {};  ///< of a matrix
  /// Its number over all units of the model that is not cut, and its first element in that parameter.
  std::uint64_t number = 0, first = 0;
};

/// A parameter's position in the description.
struct ParameterId {
  std::size_t unit, index;
  bool operator==(const ParameterId&) const = default;
};

/// Parameters that are used together. A unit's tensors are passed in this order: `parameters`, then `uses`.
struct UnitDescription {
  std::string name;
  std::vector<ParameterDescription> parameters;  ///< owned by this unit
  std::vector<ParameterId> uses = {};            ///< owned by another unit: the tied embedding
  std::uint32_t layer = 0;                       ///< of a unit of a block
  std::vector<BlockPiece> pieces = {};           ///< of a unit of a block: two parameters each, in this order

  [[nodiscard]] std::size_t tensor_count() const { return parameters.size() + uses.size(); }
  [[nodiscard]] penstock::ElementCount element_count() const;  ///< of the owned parameters
  [[nodiscard]] penstock::ElementCount trained_count() const;  ///< of those that are not frozen
};

/// A turn of a unit in the backward of a micro-batch.
struct BackwardVisit {
  std::uint32_t unit;
  bool recompute;  ///< first computes the unit's activations again
  bool backward;
};

/// The model as a trainer needs to know it: units in forward order (embed, block.0 …, head) and their parameters. A
/// value type, independent of where parameters are stored.
class ModelDescription {
 public:
  /// Precondition: `config` is valid.
  explicit ModelDescription(const ModelConfig& config);

  [[nodiscard]] std::span<const UnitDescription> units() const& { return units_; }
  std::span<const UnitDescription> units() const&& = delete;  // the span would outlive the units
  [[nodiscard]] const ParameterDescription& parameter(ParameterId id) const {
    return units_[id.unit].parameters[id.index];
  }
  [[nodiscard]] penstock::ElementCount element_count() const;
  [[nodiscard]] penstock::ElementCount trained_count() const;
  /// Whether blocks are several units.
  [[nodiscard]] bool blocks_are_cut() const { return units_per_block_ > 1; }
  /// The units in the order of the backward, without an embedding that is frozen. Where activations are checkpoints,
  /// all units of a block compute theirs again before the last of them runs its backward.
  [[nodiscard]] std::vector<BackwardVisit> backward_visits(bool checkpoint) const;
  /// Elements of the fp32 scratch that the Ops of host memory need for this model.
  [[nodiscard]] penstock::ElementCount scratch_count() const;

  /// Element `element` of a parameter before training. Depends only on the seed, the parameter's number and the
  /// element, so that any rank can compute any slice, with the same bits on every platform and however blocks are cut.
  [[nodiscard]] float initial_value(ParameterId id, std::uint64_t element) const;
  /// The values of elements [first, first + values.size()).
  void initial_values(ParameterId id, std::uint64_t first, std::span<float> values) const;

 private:
  std::vector<UnitDescription> units_;
  std::size_t units_per_block_ = 1;
  std::uint32_t width_;
  std::uint64_t seed_;
};

}  // namespace gpt
