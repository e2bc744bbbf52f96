#pragma once

#include <penstock/base/dtype.hpp>

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>

namespace gpt {

/// Products of row-major matrices on cuBLASLt: bf16 operands, fp32 sums, a result of bf16 or fp32.
///
/// Descriptors are created and an algorithm is chosen when a shape is first used; later uses create and allocate
/// nothing. The choice depends on the shape alone, and only algorithms that reduce in a fixed order are allowed. Used
/// with one stream, from one thread at a time.
class CudaMatmul {
 public:
  /// What is done with a sum before it is rounded, and what else the product computes.
  enum class Epilogue : std::uint8_t {
    none,
    add_bias,       ///< vector[columns] is added to each row
    gelu,           ///< so is the vector; the sum is stored as `other`, and the result is its gelu
    gelu_backward,  ///< the sum is multiplied by gelu'(other)
    row_sums,       ///< vector[rows] becomes the sums of the rows of op(a)
  };
  /// d[rows, columns] = scale · op(a)[rows, inner] · op(b)[inner, columns], where op transposes or not; plus c if
  /// `adds`.
  struct Shape {
    std::uint32_t rows = 0, columns = 0, inner = 0;
    /// Elements from a row, as stored, to the next of a, and of c, d and `other`; 0: the rows follow one another.
    std::uint32_t a_stride = 0, d_stride = 0;
    bool transposes_a = false, transposes_b = false, adds = false;
    Epilogue epilogue = Epilogue::none;
    penstock::DType result = penstock::DType::bf16;
    auto operator<=>(const Shape&) const = default;
  };
  /// Device memory, aligned to 16 bytes, and what does not change the algorithm. `vector` and `other` have the dtype of
  /// the result; c may be d.
  struct Tensors {
    const void *a, *b;
    const void* c = nullptr;
    void* d;
    void* vector = nullptr;
    void* other = nullptr;
    float scale = 1;
  };

  /// Allocates the workspace of all products on the current device. Sets `made`, or returns the error.
  [[nodiscard]] static cublasStatus_t create(std::unique_ptr<CudaMatmul>& made);
  CudaMatmul(const CudaMatmul&) = delete;
  CudaMatmul& operator=(const CudaMatmul&) = delete;
  ~CudaMatmul();

  /// Enqueues a product. CUBLAS_STATUS_NOT_SUPPORTED, if cuBLASLt has no algorithm for it.
  [[nodiscard]] cublasStatus_t run(cudaStream_t stream, const Shape& shape, const Tensors& tensors);

 private:
  struct Plan;

  CudaMatmul() = default;
  [[nodiscard]] cublasStatus_t plan(const Shape& shape, const Tensors& tensors, Plan*& found);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace gpt
