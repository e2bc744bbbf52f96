#pragma once

#include "zero/layout/shard_layout.hpp"

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// A digest of a model's master weights: of each parameter's name, its place in layout order and its values. It does
/// not depend on units, padding, tiles or the number of ranks.
///
/// It is the sum modulo 2^128 of the XXH3-128 of each chunk of 128 values, seeded with the parameter and the chunk's
/// number, so that ranks and threads hash their parts in any order and add the sums. A shard begins at a multiple of
/// 128 values of each of its parameters (FlatLayout::alignment): no chunk has values of two ranks.
///
///     ParameterDigest digest(model);
///     digest.add(id, first, values);                  // every value of every parameter once, in any order
///     digest.add(sum_of_another_rank);
///     std::string text = digest.to_string();
class ParameterDigest {
 public:
  struct Sum {
    std::uint64_t low = 0, high = 0;
  };
  static constexpr std::uint64_t chunk = FlatLayout::alignment;

  explicit ParameterDigest(const ModelLayout& model);

  /// Values [first, first + values.size()) of parameter `id`. `first` is a multiple of `chunk`, and so is the size
  /// except at the parameter's end.
  void add(ParameterId id, std::uint64_t first, std::span<const float> values);
  void add(const Sum& sum);
  [[nodiscard]] const Sum& sum() const { return sum_; }
  /// 32 hexadecimal digits.
  [[nodiscard]] std::string to_string() const;

 private:
  std::vector<std::vector<std::uint64_t>> seeds_;  // by unit and parameter
  Sum sum_;
};

}  // namespace penstock::zero
