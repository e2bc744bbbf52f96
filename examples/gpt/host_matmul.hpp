#pragma once

#include <cstdint>

namespace gpt::host {

enum class Transpose : bool { no, yes };

/// A row-major matrix inside a larger one: element (i, j) at data[i · stride + j].
template <class Float>
struct Matrix {
  Float* data;
  std::uint32_t stride;
  Transpose transpose = Transpose::no;
};

struct ProductSize {
  std::uint32_t rows, columns, inner;
};

/// c[rows, columns] = scale · op(a)[rows, inner] · op(b)[inner, columns] (+ c, when `add`), fp32, on this thread.
void product(ProductSize size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c,
             bool add = false, float scale = 1) noexcept;

/// Must be called once per process, before the first product.
void limit_products_to_one_thread();

}  // namespace gpt::host
