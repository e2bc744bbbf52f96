#include "gpt/host_matmul.hpp"
#include "gpt/host_ops.hpp"

#include <cblas.h>

#include <mutex>
#include <string>

namespace gpt {

namespace host {

namespace {
CBLAS_TRANSPOSE cblas(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}
}  // namespace

void product(ProductSize size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c, bool add,
             float scale) noexcept {
  const auto index = [](std::uint32_t n) { return static_cast<blasint>(n); };
  cblas_sgemm(CblasRowMajor, cblas(a.transpose), cblas(b.transpose), index(size.rows), index(size.columns),
              index(size.inner), scale, a.data, index(a.stride), b.data, index(b.stride), add ? 1.0f : 0.0f,
              c.data, index(c.stride));
}

void limit_products_to_one_thread() {
  static std::once_flag once;
  std::call_once(once, [] { openblas_set_num_threads(1); });
}

}  // namespace host

const char* host_matmul_name() {
  static const std::string name = std::string("OpenBLAS ") + openblas_get_corename();
  return name.c_str();
}

}  // namespace gpt
