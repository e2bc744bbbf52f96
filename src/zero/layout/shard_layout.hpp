#pragma once

#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// A parameter's place in a flat.
struct FlatSlot {
  ParameterId parameter;
  ElementCount begin, count;
};

/// One contiguous buffer of a unit, for the parameters of one optimizer group. Parameters follow each
/// other at multiples of 128 elements; the length is padded with zeros to a multiple of ranks × 128, and the shard of
/// rank r is the r-th of `ranks` equal slices. Example: parameters of 100 and 200 elements on 2 ranks: they begin at 0
/// and 128, the length is 512, a shard has 256 elements.
///
/// In a flat of matrices, no matrix is divided: sorted by size, as many as there are ranks stand at the same place of
/// each shard, in a range of the largest one's size. Example: matrices of 100, 300 and 200 elements on 2 ranks: the
/// second one is at 0, the third one at 512, which is the second shard's begin, and the first one at 384; a shard has
/// 384 + 128 elements.
struct FlatLayout {
  static constexpr std::uint64_t alignment = 128;

  std::string name;
  std::uint32_t unit = 0, group = 0;
  bool frozen = false;          ///< OptimizerGroup::frozen
  std::vector<FlatSlot> slots;  ///< in the order of their begins
  /// OptimizerGroup::use_muon, unless frozen: the lengths of the ranges of a shard, each for one matrix at most; else
  /// empty.
  std::vector<ElementCount> matrix_ranges;
  ElementCount length;
  ElementCount shard;  ///< length / ranks

  /// The padding: ranges that no parameter covers.
  [[nodiscard]] std::vector<FlatSlot> gaps() const;
  [[nodiscard]] bool has_matrices() const { return !matrix_ranges.empty(); }
};

/// Tells for an error which parameters a range of a rank's shard belongs to.
struct ElementNames {
  const ModelLayout* model = nullptr;
  std::uint32_t rank = 0;

  /// The names in the model, "unit.parameter", joined by "or"; of padding alone that of the flat. What is beyond the
  /// shard, as of a last block that is shorter, does not count.
  [[nodiscard]] std::string of(const FlatLayout& flat, ElementCount first, ElementCount count) const;
};

/// The flats of a model and their division into shards.
class ShardLayout {
 public:
  /// `model` is valid and `ranks` > 0.
  ShardLayout(const ModelLayout& model, std::uint32_t ranks);

  [[nodiscard]] std::span<const FlatLayout> flats() const { return flats_; }
  [[nodiscard]] std::uint32_t unit_count() const { return static_cast<std::uint32_t>(needed_.size()); }
  /// Indices of the flats that a unit needs: its own, then those of the parameters that it shares.
  [[nodiscard]] std::span<const std::uint32_t> needed_by(std::uint32_t unit) const { return needed_[unit]; }
  /// Those of needed_by() that get gradients.
  [[nodiscard]] std::span<const std::uint32_t> trained_by(std::uint32_t unit) const { return trained_[unit]; }
  /// How many units use a flat.
  [[nodiscard]] std::uint32_t user_count(std::uint32_t flat) const { return users_[flat]; }

  struct Place {
    std::uint32_t flat = 0;
    ElementCount begin, count;
  };
  [[nodiscard]] Place place(ParameterId parameter) const { return places_[parameter.unit][parameter.index]; }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }

 private:
  /// Place the parameters of the flat, which are those of `slots`.
  void place_one_after_the_other(FlatLayout& flat) const;
  void place_matrices(FlatLayout& flat) const;

  std::uint32_t ranks_;
  std::vector<FlatLayout> flats_;
  std::vector<std::vector<std::uint32_t>> needed_, trained_;
  std::vector<std::uint32_t> users_;
  std::vector<std::vector<Place>> places_;
};

}  // namespace penstock::zero
