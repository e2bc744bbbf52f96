#include "fake_cuda/cublas_lt_product.hpp"

#include "fake_cuda/fake_cuda.hpp"
#include "kit/seeded_random.hpp"

#include <bit>
#include <cmath>
#include <tuple>
#include <utility>
#include <vector>

namespace penstock::test::fake_cuda {

cublasStatus_t Product::check() const {
  for (const Layout* layout : {&a, &b, &c, &d}) {
    const bool dense = layout->leading >= static_cast<std::int64_t>(layout->rows);
    if (layout->rows == 0 || layout->columns == 0 || !dense) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const auto shape = [](const Layout& layout, std::int32_t op) {
    return op == CUBLAS_OP_N ? std::pair(layout.rows, layout.columns)
                             : std::pair(layout.columns, layout.rows);
  };
  const auto left = shape(a, description.op_a), right = shape(b, description.op_b);
  const bool fits = left == std::pair(rows(), inner()) && right == std::pair(inner(), columns()) &&
                    std::tuple(c.rows, c.columns, c.type) == std::tuple(d.rows, d.columns, d.type);
  if (!fits) return CUBLAS_STATUS_INVALID_VALUE;
  if (description.uses_vector() && description.vector == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  if (description.uses_other()) {
    const bool leads =
        description.other_leading % 8 == 0 && description.other_leading >= static_cast<std::int64_t>(d.rows);
    if (description.other == nullptr || !leads) return CUBLAS_STATUS_INVALID_VALUE;
  }
  const bool types =
      a.type == CUDA_R_16BF && b.type == CUDA_R_16BF && (d.type == CUDA_R_16BF || d.type == CUDA_R_32F);
  return types && description.known() ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

std::uint64_t Product::fingerprint() const {
  std::uint64_t hash = 0;
  const auto mix = [&](std::uint64_t number) { hash = SeededRandom::mix(hash ^ number); };
  mix(static_cast<std::uint64_t>(description.op_a) << 8 | static_cast<std::uint64_t>(description.op_b));
  mix(description.epilogue);
  for (const Layout* layout : {&a, &b, &c, &d}) {
    for (const std::uint64_t number : {static_cast<std::uint64_t>(layout->type), layout->rows,
                                       layout->columns, static_cast<std::uint64_t>(layout->leading)}) {
      mix(number);
    }
  }
  return hash;
}

namespace {

float widen(std::uint16_t x) {
  return std::bit_cast<float>(std::uint32_t{x} << 16);
}
/// A vector or a matrix on the device, as floats.
class Elements {
 public:
  Elements(std::byte* bytes, cudaDataType type) : bytes_(bytes), type_(type) {}

  [[nodiscard]] float get(std::size_t i) const {
    if (type_ == CUDA_R_32F) return reinterpret_cast<const float*>(bytes_)[i];
    return widen(reinterpret_cast<const std::uint16_t*>(bytes_)[i]);
  }
  /// Rounds to nearest even.
  void set(std::size_t i, float x) const {
    if (type_ == CUDA_R_32F) {
      reinterpret_cast<float*>(bytes_)[i] = x;
      return;
    }
    const auto bits = std::bit_cast<std::uint32_t>(x);
    reinterpret_cast<std::uint16_t*>(bytes_)[i] =
        static_cast<std::uint16_t>(std::isnan(x) ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }

 private:
  std::byte* bytes_;
  cudaDataType type_;
};

/// op(X) as it is used: element (i, k) of the left operand, or (k, i) of the right one, at i · inner + k.
std::vector<float> operand(const std::byte* bytes, const Layout& layout, bool inner_is_rows) {
  const auto* const from = reinterpret_cast<const std::uint16_t*>(bytes);
  std::vector<float> values;
  values.reserve(layout.rows * layout.columns);
  const std::uint64_t outer = inner_is_rows ? layout.columns : layout.rows;
  const std::uint64_t inner = inner_is_rows ? layout.rows : layout.columns;
  for (std::uint64_t i = 0; i < outer; ++i) {
    for (std::uint64_t k = 0; k < inner; ++k) {
      const std::uint64_t row = inner_is_rows ? k : i, column = inner_is_rows ? i : k;
      values.push_back(widen(from[column * static_cast<std::uint64_t>(layout.leading) + row]));
    }
  }
  return values;
}

/// The tanh form, which cuBLASLt computes.
double gelu_gate(double u) {
  return 1 / (1 + std::exp(-2 * std::sqrt(2 / 3.14159265358979) * (u + 0.044715 * u * u * u)));
}
double gelu_slope(double u) {
  const double gate = gelu_gate(u), inner = std::sqrt(2 / 3.14159265358979) * (1 + 3 * 0.044715 * u * u);
  return gate + u * gate * (1 - gate) * 2 * inner;
}

}  // namespace

/// Sums in the order of `inner`, unfused; cuBLAS has other orders. Reads no C if beta is 0.
cudaError_t Product::run() const {
  const std::byte* const x = bytes(a_data, a.size());
  const std::byte* const y = bytes(b_data, b.size());
  std::byte *const from = beta == 0 ? nullptr : bytes(c_data, c.size()), *const to = bytes(d_data, d.size());
  const bool sums = description.epilogue == CUBLASLT_EPILOGUE_BGRADB;
  const std::size_t vector_size = (sums ? columns() : rows()) * d.element_size();
  const std::size_t other_size =
      ((columns() - 1) * static_cast<std::size_t>(description.other_leading) + rows()) * d.element_size();
  std::byte* const vector = description.uses_vector() ? bytes(description.vector, vector_size) : nullptr;
  std::byte* const other = description.uses_other() ? bytes(description.other, other_size) : nullptr;
  if (x == nullptr || y == nullptr || to == nullptr || (beta != 0 && from == nullptr) ||
      (description.uses_vector() && vector == nullptr) || (description.uses_other() && other == nullptr)) {
    return cudaErrorIllegalAddress;
  }
  const std::vector<float> left = operand(x, a, description.op_a != CUBLAS_OP_N);
  const std::vector<float> right = operand(y, b, description.op_b == CUBLAS_OP_N);
  const Elements addend(from, c.type), result(to, d.type), in_vector(vector, d.type), in_other(other, d.type);
  for (std::uint64_t column = 0; column < columns(); ++column) {
    for (std::uint64_t row = 0; row < rows(); ++row) {
      float sum = 0;
      for (std::uint64_t k = 0; k < inner(); ++k)
        sum += left[row * inner() + k] * right[column * inner() + k];
      sum *= alpha;
      if (beta != 0) sum += beta * addend.get(column * static_cast<std::uint64_t>(c.leading) + row);
      if ((description.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0) sum += in_vector.get(row);
      const std::uint64_t at = column * static_cast<std::uint64_t>(description.other_leading) + row;
      if (description.epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        in_other.set(at, sum);
        sum = static_cast<float>(sum * gelu_gate(sum));
      } else if (description.epilogue == CUBLASLT_EPILOGUE_DGELU) {
        sum = static_cast<float>(sum * gelu_slope(in_other.get(at)));
      }
      result.set(column * static_cast<std::uint64_t>(d.leading) + row, sum);
    }
    if (!sums) continue;
    float total = 0;
    for (std::uint64_t k = 0; k < inner(); ++k) total += right[column * inner() + k];
    in_vector.set(column, total);
  }
  return cudaSuccess;
}

}  // namespace penstock::test::fake_cuda
