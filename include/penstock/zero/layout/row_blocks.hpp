#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace penstock::zero {

/// Consecutive rows of a matrix.
struct RowBlock {
  std::uint64_t first = 0, count = 0;
  bool operator==(const RowBlock&) const = default;
};

/// A matrix to be cut.
struct RowBlockOptions {
  std::string name;                ///< for messages: "block.3.up.weight"
  std::uint64_t rows = 0;          ///< > 0
  std::uint64_t row_elements = 0;  ///< > 0; of a row, and of what is cut with it, such as a bias
  ElementCount elements_max = {};  ///< of a block: penstock.unit_elements_max; 0: no limit
  std::uint64_t multiple = 1;      ///< > 0; blocks begin at multiples of it
};

/// Cuts a matrix into the fewest blocks of rows within the limit, of equal size as far as `multiple` permits. Make each
/// block a unit of the ModelLayout, so that a matrix too large to gather is used block by block. Rows of a block are
/// consecutive, and its y = x · wᵀ are columns of the layer's y. DeepSpeed has TiledLinear for this.
///
///     auto blocks = zero::cut_rows({.name = "up.weight", .rows = 16384, .row_elements = 4096,
///                                   .elements_max = config.penstock.unit_elements_max, .multiple = 64});
///
/// Errors: invalid_argument, for a zero, for more elements than fit into 64 bits, for a limit below that of `multiple`
/// rows, and for a limit that makes more than a million blocks.
[[nodiscard]] Result<std::vector<RowBlock>> cut_rows(const RowBlockOptions& matrix);

}  // namespace penstock::zero
