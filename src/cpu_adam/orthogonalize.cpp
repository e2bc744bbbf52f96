#include "cpu_adam/orthogonalize.hpp"

#include "cpu_adam/block_view.hpp"
#include "cpu_adam/muon_step.hpp"
#include "kernels/floating_point_mode.hpp"

#include <algorithm>
#include <utility>

namespace penstock::cpu_adam {

namespace {

using Operand = MatrixProduct::Operand;

/// Rows of a product that a worker computes at a time; the result depends on it.
constexpr std::uint64_t panel_rows = 128;

/// Calls body(first, count) for the panels of `rows`, the first one together with the last one and so on: in a triangle
/// two have about as many elements as any other two.
template <class Body>
void for_each_panel(parallel::Workers* workers, std::uint64_t rows, const Body& body) {
  const std::uint64_t panels = ceil_divide(rows, panel_rows);
  const auto one = [&](std::uint64_t panel) {
    const std::uint64_t first = panel * panel_rows;
    body(first, std::min(panel_rows, rows - first));
  };
  detail::parallel_blocks(workers, ceil_divide(panels, 2), [&](std::size_t begin, std::size_t end) noexcept {
    const kernels::DefaultFloatingPointMode mode;
    for (std::size_t i = begin; i < end; ++i) {
      one(i);
      if (panels - 1 - i != i) one(panels - 1 - i);
    }
  });
}

/// Copies the lower triangle of a square to the upper one.
void mirror(parallel::Workers* workers, std::span<float> square, std::uint64_t side) {
  for_each_panel(workers, side, [&](std::uint64_t first, std::uint64_t count) {
    for (std::uint64_t row = first; row < first + count; ++row) {
      for (std::uint64_t column = row + 1; column < side; ++column)
        square[row * side + column] = square[column * side + row];
    }
  });
}

/// Newton-Schulz iterations on a matrix X: its Gram matrix A is of its shorter side, so X X' or X' X.
class Iterations {
 public:
  Iterations(const MatrixProduct& product, MatrixShape shape, MuonScratch scratch, parallel::Workers* workers)
      : product_(product),
        shape_(shape),
        is_wide_(shape.rows <= shape.columns),
        side_(std::min(shape.rows, shape.columns)),
        scratch_(scratch),
        workers_(workers) {}

  std::span<const float> run(double norm) {
    const auto factor = static_cast<float>(1 / (norm + 1e-7));
    for_each_panel(workers_, shape_.rows, [&](std::uint64_t first, std::uint64_t count) {
      for (float& value : rows_of(scratch_.matrix, first, count)) value *= factor;
    });
    for (int i = 0; i < 5; ++i) iterate();
    return scratch_.matrix;
  }

 private:
  [[nodiscard]] std::span<float> rows_of(std::span<float> matrix, std::uint64_t first,
                                         std::uint64_t count) const {
    return matrix.subspan(first * shape_.columns, count * shape_.columns);
  }

  void iterate() {
    constexpr float a = 3.4445f, b = -4.775f, c = 2.0315f;
    const float* const x = scratch_.matrix.data();
    const std::uint64_t columns = shape_.columns;
    float *const gram = scratch_.gram.data(), *const polynomial = scratch_.polynomial.data();
    for_each_panel(workers_, side_, [&](std::uint64_t first, std::uint64_t count) {
      const Operand panel =
          is_wide_ ? Operand{x + first * columns, columns} : Operand{x + first, columns, true};
      product_.add({count, first + count}, is_wide_ ? columns : shape_.rows, 1, panel, {x, columns, is_wide_},
                   0, gram + first * side_, side_);
    });
    mirror(workers_, scratch_.gram, side_);
    for_each_panel(workers_, side_, [&](std::uint64_t first, std::uint64_t count) {
      const auto lower = [&](std::span<float> square) {
        return square.subspan(first * side_, count * side_);
      };
      std::copy_n(lower(scratch_.gram).data(), count * side_, lower(scratch_.polynomial).data());
      product_.add({count, first + count}, side_, c, {gram + first * side_, side_}, {gram, side_}, b,
                   polynomial + first * side_, side_);
    });
    mirror(workers_, scratch_.polynomial, side_);
    for_each_panel(workers_, shape_.rows, [&](std::uint64_t first, std::uint64_t count) {
      const std::span<float> next = rows_of(scratch_.next, first, count);
      std::copy_n(x + first * columns, next.size(), next.data());
      const Operand square{polynomial + (is_wide_ ? first * side_ : 0), side_};
      const Operand matrix{x + (is_wide_ ? 0 : first * columns), columns};
      product_.add({count, columns}, side_, 1, is_wide_ ? square : matrix, is_wide_ ? matrix : square, a,
                   next.data(), columns);
    });
    std::swap(scratch_.matrix, scratch_.next);
  }

  const MatrixProduct& product_;
  const MatrixShape shape_;
  const bool is_wide_;
  const std::uint64_t side_;
  MuonScratch scratch_;
  parallel::Workers* const workers_;
};

}  // namespace

ByteCount muon_scratch_bytes(MatrixShape shape) {
  const std::uint64_t side = std::min(shape.rows, shape.columns);
  return ByteCount((shape.elements().value() + side * side) * 2 * sizeof(float));
}

MuonScratch MuonScratch::of(MatrixShape shape, HostSpan bytes) {
  const std::uint64_t elements = shape.elements().value(), side = std::min(shape.rows, shape.columns);
  std::span<float> rest(reinterpret_cast<float*>(bytes.data()), bytes.size().value() / sizeof(float));
  const auto take = [&](std::uint64_t count) {
    return std::exchange(rest, rest.subspan(count)).first(count);
  };
  MuonScratch scratch;
  scratch.matrix = take(elements);
  scratch.next = take(elements);
  scratch.gram = take(side * side);
  scratch.polynomial = take(side * side);
  return scratch;
}

std::span<const float> orthogonalize(const MatrixProduct& product, MatrixShape shape, double norm,
                                     MuonScratch scratch, parallel::Workers* workers) {
  return Iterations(product, shape, scratch, workers).run(norm);
}

}  // namespace penstock::cpu_adam
