// The functions of cuBLAS that the GPT example calls.
#include "fake_cuda/runtime.hpp"

#include <cublas_v2.h>
#include <algorithm>

using namespace penstock::test::fake_cuda;

namespace {

/// What cublasCreate makes. Its handle is the address of its workspace on the device, so that restart() ends it too.
struct Context {
  int device = 0;
  cudaStream_t stream = nullptr;
};
constexpr std::size_t workspace_size = 4096;
std::map<cublasHandle_t, Context> contexts_by_handle;  // guarded by Runtime::mutex

Context* find(const Runtime& runtime, cublasHandle_t handle) {
  const auto found = contexts_by_handle.find(handle);
  const bool exists = found != contexts_by_handle.end() && runtime.memory.starting_at(handle) != nullptr;
  return exists ? &found->second : nullptr;
}

/// The frame of each function with a handle.
template <class Body>
cublasStatus_t call_with(cublasHandle_t handle, const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  std::unique_lock lock(runtime.mutex);
  if (runtime.enter(function, lock) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  Context* const context = find(runtime, handle);
  return context == nullptr ? CUBLAS_STATUS_NOT_INITIALIZED : body(runtime, *context);
}

/// `count` matrices of device memory in column-major order, which an operand transposes.
struct Matrices {
  const float* data;
  int rows, columns, leading;  // as they are stored
  long long stride;
  bool transposed;

  [[nodiscard]] bool valid() const { return leading >= std::max(1, rows); }
  /// One of them when the stream gets there; null outside of an allocation.
  [[nodiscard]] float* matrix(int number) const {
    const std::size_t elements = static_cast<std::size_t>(columns - 1) * static_cast<std::size_t>(leading) +
                                 static_cast<std::size_t>(rows);
    return reinterpret_cast<float*>(bytes(data + number * stride, elements * sizeof *data));
  }
  [[nodiscard]] std::size_t index(int row, int column) const {
    const int r = transposed ? column : row, c = transposed ? row : column;
    return static_cast<std::size_t>(c) * static_cast<std::size_t>(leading) + static_cast<std::size_t>(r);
  }
};

Matrices operand(cublasOperation_t operation, const float* data, int rows, int columns, int leading,
                 long long stride) {
  const bool transposed = operation != CUBLAS_OP_N;
  return {data, transposed ? columns : rows, transposed ? rows : columns, leading, stride, transposed};
}

struct Product {
  Matrices a, b, c;
  int rows, columns, inner, batches;
  float alpha, beta;

  /// Sums in the order of `inner`, unfused; cuBLAS has other orders. Reads no C if beta is 0.
  [[nodiscard]] cudaError_t run() const {
    for (int batch = 0; batch < batches; ++batch) {
      const float *const x = inner > 0 ? a.matrix(batch) : nullptr, *const y =
                                                                        inner > 0 ? b.matrix(batch) : nullptr;
      float* const z = c.matrix(batch);
      if (z == nullptr || (inner > 0 && (x == nullptr || y == nullptr))) return cudaErrorIllegalAddress;
      for (int column = 0; column < columns; ++column) {
        for (int row = 0; row < rows; ++row) {
          float sum = 0;
          for (int i = 0; i < inner; ++i) sum += x[a.index(row, i)] * y[b.index(i, column)];
          float& to = z[c.index(row, column)];
          to = beta == 0 ? alpha * sum : alpha * sum + beta * to;
        }
      }
    }
    return cudaSuccess;
  }
};

}  // namespace

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = nullptr;
  void* workspace = nullptr;
  const cudaError_t error = cudaMalloc(&workspace, workspace_size);
  if (error != cudaSuccess)
    (void)cudaGetLastError();  // cuBLAS has a runtime of its own, with its own last error
  if (error == cudaErrorMemoryAllocation) return CUBLAS_STATUS_ALLOC_FAILED;
  if (error != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = static_cast<cublasHandle_t>(workspace);
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  contexts_by_handle[*handle] = {.device = runtime.current_device()};
  return CUBLAS_STATUS_SUCCESS;
}

// Waits for the device (cuBLAS, cublasDestroy).
cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  const cublasStatus_t status = call_with(handle, "cublasDestroy", [&](Runtime&, const Context&) {
    contexts_by_handle.erase(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
  if (status == CUBLAS_STATUS_SUCCESS) (void)cudaFree(handle);
  return status;
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  return call_with(handle, "cublasSetStream", [&](Runtime&, Context& context) {
    context.stream = stream;
    return CUBLAS_STATUS_SUCCESS;
  });
}

// C = alpha op(A) op(B) + beta C, with op(A) of m x k and op(B) of k x n elements.
cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t op_a,
                                         cublasOperation_t op_b, int m, int n, int k, const float* alpha,
                                         const float* a, int lda, long long stride_a, const float* b, int ldb,
                                         long long stride_b, const float* beta, float* c, int ldc,
                                         long long stride_c, int batches) {
  return call_with(handle, "cublasSgemmStridedBatched", [&](Runtime& runtime, const Context& context) {
    const auto known = [](cublasOperation_t op) { return op >= CUBLAS_OP_N && op <= CUBLAS_OP_C; };
    if (std::min({m, n, k, batches}) < 0 || !known(op_a) || !known(op_b) || alpha == nullptr ||
        beta == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Product product{.a = operand(op_a, a, m, k, lda, stride_a),
                          .b = operand(op_b, b, k, n, ldb, stride_b),
                          .c = operand(CUBLAS_OP_N, c, m, n, ldc, stride_c),
                          .rows = m,
                          .columns = n,
                          .inner = k,
                          .batches = batches,
                          .alpha = *alpha,
                          .beta = *beta};
    if (!product.a.valid() || !product.b.valid() || !product.c.valid()) return CUBLAS_STATUS_INVALID_VALUE;
    const auto stream = runtime.stream(context.stream);
    if (stream == nullptr || stream->device() != context.device ||
        runtime.current_device() != context.device) {
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    if (m > 0 && n > 0 && batches > 0) runtime.append(stream, [product] { return product.run(); });
    return CUBLAS_STATUS_SUCCESS;
  });
}

const char* cublasGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return "unknown";
  }
}

}  // extern "C"
