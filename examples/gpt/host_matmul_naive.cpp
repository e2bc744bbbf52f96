// The product for builds without OpenBLAS, and for the thread sanitizer, which reports false races in it.
#include "gpt/host_matmul.hpp"

#include <cstddef>

namespace gpt {

namespace host {

namespace {
float element(const Matrix<const float>& m, std::size_t row, std::size_t column) {
  return m.transpose == Transpose::yes ? m.data[column * m.stride + row] : m.data[row * m.stride + column];
}
}  // namespace

void product(ProductSize size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c, bool add,
             float scale) noexcept {
  for (std::size_t i = 0; i < size.rows; ++i) {
    for (std::size_t j = 0; j < size.columns; ++j) {
      float sum = 0;
      for (std::size_t k = 0; k < size.inner; ++k) sum += element(a, i, k) * element(b, k, j);
      float& result = c.data[i * c.stride + j];
      result = add ? result + scale * sum : scale * sum;
    }
  }
}

penstock::Result<void> prepare_products() {
  return penstock::ok();
}

}  // namespace host

}  // namespace gpt
