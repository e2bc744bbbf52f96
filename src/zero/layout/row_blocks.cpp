#include <penstock/zero/layout/row_blocks.hpp>

#include <algorithm>
#include <limits>

namespace penstock::zero {

namespace {

constexpr std::uint64_t uint64_max = std::numeric_limits<std::uint64_t>::max();
constexpr std::uint64_t blocks_max = 1 << 20;

Error refused(const RowBlockOptions& matrix) {
  return Error::invalid_argument("cut_rows").object(matrix.name);
}

Result<void> check(const RowBlockOptions& matrix) {
  if (matrix.rows == 0) return refused(matrix).reason("a matrix has at least one row");
  if (matrix.row_elements == 0) return refused(matrix).reason("a row has at least one element");
  if (matrix.multiple == 0) return refused(matrix).reason("blocks of rows begin at multiples of 1 or more");
  if (matrix.rows > uint64_max / matrix.row_elements || matrix.multiple > uint64_max / matrix.row_elements) {
    return refused(matrix).reason("the number of elements does not fit into 64 bits");
  }
  return ok();
}

}  // namespace

Result<std::vector<RowBlock>> cut_rows(const RowBlockOptions& matrix) {
  PENSTOCK_TRY(check(matrix));
  const std::uint64_t limit = matrix.elements_max.is_zero() ? uint64_max : matrix.elements_max.value();
  const std::uint64_t rows_max = limit / matrix.row_elements;
  if (matrix.rows <= rows_max) return std::vector<RowBlock>{{.count = matrix.rows}};

  // In groups of `multiple` rows, of which the last may be smaller.
  const std::uint64_t groups_max = rows_max / matrix.multiple;
  if (groups_max == 0) {
    return refused(matrix)
        .reason("a block is too small for " + std::to_string(matrix.multiple) + " rows")
        .wanted("at least " + to_string(ElementCount(matrix.multiple * matrix.row_elements)))
        .got(matrix.elements_max)
        .advice("raise penstock.unit_elements_max, or set it to 0");
  }
  const std::uint64_t groups = ceil_divide(matrix.rows, matrix.multiple);
  const std::uint64_t count = ceil_divide(groups, groups_max);
  if (count > blocks_max) {
    return refused(matrix)
        .reason("the limit makes too many blocks")
        .wanted("at most " + std::to_string(blocks_max))
        .got(count)
        .advice("raise penstock.unit_elements_max");
  }
  std::vector<RowBlock> blocks;
  for (std::uint64_t i = 0; i < count; ++i) {
    const auto begin = [&](std::uint64_t block) {
      const std::uint64_t longer = std::min(block, groups % count);
      return std::min((block * (groups / count) + longer) * matrix.multiple, matrix.rows);
    };
    blocks.push_back({.first = begin(i), .count = begin(i + 1) - begin(i)});
  }
  return blocks;
}

}  // namespace penstock::zero
