#pragma once

#include "cpu_adam/muon_step.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

namespace penstock::cpu_adam::test {

/// Muon of one matrix in double precision, by the formula of the publication: the matrix is transposed where it has
/// more rows than columns, and the products are plain loops.
class MuonReference {
 public:
  MuonReference(MatrixShape shape, const std::vector<float>& masters)
      : master(masters.begin(), masters.end()), momentum(masters.size()), shape_(shape) {}

  void step(const MuonConfig& config, const std::vector<float>& gradient, double gradient_factor) {
    const double beta = config.momentum;
    std::vector<double> direction(master.size());
    for (std::size_t i = 0; i < master.size(); ++i) {
      const double g = gradient[i] * gradient_factor;
      momentum[i] = beta * momentum[i] + (1 - beta) * g;
      direction[i] = (1 - beta) * g + beta * momentum[i];
    }
    const bool tall = shape_.rows > shape_.columns;
    direction = zeropower(tall ? transpose(direction, shape_.rows, shape_.columns) : direction,
                          std::min(shape_.rows, shape_.columns), std::max(shape_.rows, shape_.columns));
    if (tall) direction = transpose(direction, shape_.columns, shape_.rows);
    const double scale = std::sqrt(std::max(1.0, double(shape_.rows) / double(shape_.columns)));
    for (std::size_t i = 0; i < master.size(); ++i) {
      master[i] *= 1 - double{config.learning_rate} * config.weight_decay;
      master[i] -= config.learning_rate * scale * direction[i];
    }
  }

  std::vector<double> master, momentum;

 private:
  using Matrix = std::vector<double>;

  static Matrix transpose(const Matrix& m, std::uint64_t rows, std::uint64_t columns) {
    Matrix result(m.size());
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint64_t j = 0; j < columns; ++j) result[j * rows + i] = m[i * columns + j];
    }
    return result;
  }
  static Matrix product(const Matrix& a, const Matrix& b, std::uint64_t rows, std::uint64_t inner,
                        std::uint64_t columns) {
    Matrix c(rows * columns);
    for (std::uint64_t i = 0; i < rows; ++i) {
      for (std::uint64_t k = 0; k < inner; ++k) {
        for (std::uint64_t j = 0; j < columns; ++j)
          c[i * columns + j] += a[i * inner + k] * b[k * columns + j];
      }
    }
    return c;
  }
  static Matrix zeropower(Matrix x, std::uint64_t rows, std::uint64_t columns) {
    double squares = 0;
    for (const double value : x) squares += value * value;
    for (double& value : x) value /= std::sqrt(squares) + 1e-7;
    for (int i = 0; i < 5; ++i) {
      const Matrix a = product(x, transpose(x, rows, columns), rows, columns, rows);
      Matrix b = product(a, a, rows, rows, rows);
      for (std::size_t k = 0; k < b.size(); ++k) b[k] = -4.7750 * a[k] + 2.0315 * b[k];
      const Matrix change = product(b, x, rows, rows, columns);
      for (std::size_t k = 0; k < x.size(); ++k) x[k] = 3.4445 * x[k] + change[k];
    }
    return x;
  }

  MatrixShape shape_;
};

}  // namespace penstock::cpu_adam::test
