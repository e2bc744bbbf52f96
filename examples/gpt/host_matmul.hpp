#pragma once

#include <penstock/base/result.hpp>

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

/// Must have succeeded in this process before its first product. Limits products to one thread for the whole process.
/// Safe from any thread. Errors: unsupported, where the library that multiplies cannot be loaded.
[[nodiscard]] penstock::Result<void> prepare_products();

}  // namespace gpt::host
