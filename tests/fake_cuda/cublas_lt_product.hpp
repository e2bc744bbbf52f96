#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>

namespace penstock::test::fake_cuda {

/// What the opaque structures of cublasLt.h contain here.
struct Description {
  cublasComputeType_t compute;
  cudaDataType_t scale;
  std::int32_t op_a = CUBLAS_OP_N, op_b = CUBLAS_OP_N;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  std::byte *vector = nullptr, *other = nullptr;
  std::int64_t other_leading = 0;

  [[nodiscard]] bool uses_vector() const {
    return (epilogue & CUBLASLT_EPILOGUE_BIAS) != 0 || epilogue == CUBLASLT_EPILOGUE_BGRADB;
  }
  [[nodiscard]] bool uses_other() const {
    return epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS || epilogue == CUBLASLT_EPILOGUE_DGELU;
  }
  [[nodiscard]] bool known() const {
    constexpr std::uint32_t all[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                     CUBLASLT_EPILOGUE_GELU_AUX_BIAS, CUBLASLT_EPILOGUE_DGELU,
                                     CUBLASLT_EPILOGUE_BGRADB};
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F &&
           std::ranges::find(all, epilogue) != std::end(all);
  }
};
struct Layout {
  cudaDataType type;
  std::uint64_t rows, columns;
  std::int64_t leading;

  [[nodiscard]] std::size_t element_size() const { return type == CUDA_R_32F ? 4 : 2; }
  [[nodiscard]] std::size_t size() const {
    return ((columns - 1) * static_cast<std::size_t>(leading) + rows) * element_size();
  }
};

/// D = alpha op(A) op(B) + beta C, all in columns, with an epilogue.
struct Product {
  Description description;
  Layout a, b, c, d;
  const void *a_data, *b_data, *c_data;
  void* d_data;
  float alpha, beta;

  [[nodiscard]] std::uint64_t rows() const { return d.rows; }
  [[nodiscard]] std::uint64_t columns() const { return d.columns; }
  [[nodiscard]] std::uint64_t inner() const { return description.op_a == CUBLAS_OP_N ? a.columns : a.rows; }
  /// CUBLAS_STATUS_INVALID_VALUE: the sizes contradict each other. CUBLAS_STATUS_NOT_SUPPORTED: types or an epilogue
  /// that are not known here.
  [[nodiscard]] cublasStatus_t check() const;
  [[nodiscard]] std::uint64_t fingerprint() const;
  [[nodiscard]] cudaError_t run() const;
};

}  // namespace penstock::test::fake_cuda
