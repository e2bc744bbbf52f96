#include "gpt/cuda_ops.hpp"

#include "gpt/cuda_attention.hpp"
#include "gpt/cuda_kernels.hpp"
#include "gpt/device_memory.hpp"

#include <penstock/base/check.hpp>

#include <cublas_v2.h>

#include <optional>
#include <string>
#include <utility>

namespace gpt {

namespace {

using penstock::ByteCount;
using penstock::DType;
using penstock::Error;
using penstock::ErrorCode;
using penstock::Result;

template <class T>
T* pointer(DeviceSpan bytes) {
  return reinterpret_cast<T*>(static_cast<std::uintptr_t>(bytes.address()));
}
float* floats(DeviceTensor tensor) {
  return pointer<float>(tensor.bytes);
}
std::size_t count(DeviceTensor tensor) {
  return tensor.count().value();
}

/// A row-major matrix inside a larger one.
struct Matrix {
  float* data;
  std::uint32_t stride;
  bool transposed = false;
};

struct ProductSize {
  std::uint32_t rows, columns, inner;
};

class CudaOps final : public Ops {
 public:
  CudaOps(cublasHandle_t handle, DeviceBuffer scratch) : handle_(handle), scratch_(std::move(scratch)) {}
  ~CudaOps() override { cublasDestroy(handle_); }

  std::uint32_t head_width_max() const override { return cuda::attention_head_width_max; }

  Result<void> status() const override {
    if (failure_) return *failure_;
    return penstock::ok();
  }

  void matmul(StreamHandle stream, MatmulSize size, DeviceTensor x, DeviceTensor w, DeviceTensor y) override {
    run("Ops::matmul", stream, [&](cudaStream_t on) {
      product({size.rows, size.outputs, size.inputs}, {floats(x), size.inputs},
              {values(on, w), size.inputs, true}, {floats(y), size.outputs});
    });
  }

  void matmul_input_gradient(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                             DeviceTensor dx) override {
    run("Ops::matmul_input_gradient", stream, [&](cudaStream_t on) {
      product({size.rows, size.inputs, size.outputs}, {floats(dy), size.outputs},
              {values(on, w), size.inputs}, {floats(dx), size.inputs});
    });
  }

  void matmul_weight_gradient(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor x,
                              Gradient dw) override {
    run("Ops::matmul_weight_gradient", stream, [&](cudaStream_t on) {
      float* sum = scratch(0, count(dw.tensor));
      product({size.outputs, size.inputs, size.rows}, {floats(dy), size.outputs, true},
              {floats(x), size.inputs}, {sum, size.inputs});
      store(on, sum, dw);
    });
  }

  void add_bias(StreamHandle stream, RowsSize size, DeviceTensor b, DeviceTensor y) override {
    run("Ops::add_bias", stream,
        [&](cudaStream_t on) { cuda::add_bias(on, size, values(on, b), floats(y)); });
  }

  void bias_gradient(StreamHandle stream, RowsSize size, DeviceTensor dy, Gradient db) override {
    run("Ops::bias_gradient", stream, [&](cudaStream_t on) {
      float* sums = scratch(0, size.columns);
      cuda::column_sums(on, size, floats(dy), sums);
      store(on, sums, db);
    });
  }

  void add(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    run("Ops::add", stream, [&](cudaStream_t on) { cuda::add(on, floats(x), floats(y), count(x)); });
  }

  void layer_norm(StreamHandle stream, RowsSize size, DeviceTensor x, DeviceTensor gain, DeviceTensor b,
                  DeviceTensor y, DeviceTensor statistics) override {
    run("Ops::layer_norm", stream, [&](cudaStream_t on) {
      cuda::layer_norm(on, size, floats(x), values(on, gain), values(on, b, size.columns), floats(y),
                       floats(statistics));
    });
  }

  void layer_norm_backward(StreamHandle stream, RowsSize size, const LayerNormBackward& t) override {
    run("Ops::layer_norm_backward", stream, [&](cudaStream_t on) {
      float* dgain = scratch(size.columns, size.columns);
      float* db = scratch(2 * std::size_t{size.columns}, size.columns);
      cuda::layer_norm_backward(on, size, floats(t.x), values(on, t.gain), floats(t.statistics), floats(t.dy),
                                floats(t.dx), dgain, db);
      store(on, dgain, t.dgain);
      store(on, db, t.db);
    });
  }

  void attention(StreamHandle stream, AttentionSize size, DeviceTensor qkv, DeviceTensor log_sums,
                 DeviceTensor y) override {
    run("Ops::attention", stream,
        [&](cudaStream_t on) { cuda::attention(on, size, floats(qkv), floats(log_sums), floats(y)); });
  }

  void attention_backward(StreamHandle stream, AttentionSize size, const AttentionBackward& t) override {
    run("Ops::attention_backward", stream, [&](cudaStream_t on) {
      cuda::attention_backward(on, size,
                               {.qkv = floats(t.qkv),
                                .log_sums = floats(t.log_sums),
                                .y = floats(t.y),
                                .dy = floats(t.dy),
                                .projections = floats(t.projections),
                                .dqkv = floats(t.dqkv)});
    });
  }

  void gelu(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    run("Ops::gelu", stream, [&](cudaStream_t on) { cuda::gelu(on, floats(x), floats(y), count(x)); });
  }

  void gelu_backward(StreamHandle stream, DeviceTensor x, DeviceTensor dy, DeviceTensor dx) override {
    run("Ops::gelu_backward", stream,
        [&](cudaStream_t on) { cuda::gelu_backward(on, floats(x), floats(dy), floats(dx), count(x)); });
  }

  void embed(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor embedding,
             DeviceTensor positions, DeviceTensor y) override {
    run("Ops::embed", stream, [&](cudaStream_t on) {
      cuda::embed(on, size, pointer<const std::uint8_t>(tokens), values(on, embedding),
                  values(on, positions, count(embedding)), floats(y));
    });
  }

  void embed_backward(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor dy,
                      Gradient dembedding, Gradient dpositions) override {
    run("Ops::embed_backward", stream, [&](cudaStream_t on) {
      float* vectors = scratch(0, count(dembedding.tensor));
      float* positions = scratch(count(dembedding.tensor), count(dpositions.tensor));
      cuda::embed_backward(on, size, pointer<const std::uint8_t>(tokens), floats(dy), vectors, positions);
      store(on, vectors, dembedding);
      store(on, positions, dpositions);
    });
  }

  void cross_entropy(StreamHandle stream, RowsSize size, DeviceTensor logits, DeviceSpan targets,
                     DeviceTensor losses) override {
    run("Ops::cross_entropy", stream, [&](cudaStream_t on) {
      cuda::cross_entropy(on, size, floats(logits), pointer<const std::uint8_t>(targets), floats(losses));
    });
  }

  void cross_entropy_backward(StreamHandle stream, RowsSize size, DeviceTensor logits, DeviceSpan targets,
                              float scale, DeviceTensor dlogits) override {
    run("Ops::cross_entropy_backward", stream, [&](cudaStream_t on) {
      cuda::cross_entropy_backward(on, size, floats(logits), pointer<const std::uint8_t>(targets), scale,
                                   floats(dlogits));
    });
  }

 private:
  template <class Operation>
  void run(const char* name, StreamHandle stream, Operation operation) {
    if (failure_) return;
    const auto on = static_cast<cudaStream_t>(stream.native());
    check(cublasSetStream(handle_, on));
    operation(on);
    // cuBLAS does not name the error of an operation that was enqueued before; CUDA does.
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && cublas_ == CUBLAS_STATUS_SUCCESS) return;
    failure_ = Error(ErrorCode::failed_state, name)
                   .reason(error != cudaSuccess ? std::string("CUDA: ") + cudaGetErrorString(error)
                                                : std::string("cuBLAS: ") + cublasGetStatusString(cublas_));
  }

  void check(cublasStatus_t status) {
    if (cublas_ == CUBLAS_STATUS_SUCCESS) cublas_ = status;
  }

  float* scratch(std::size_t first, std::size_t length) const {
    PENSTOCK_CHECK((first + length) * sizeof(float) <= scratch_.bytes.size().value());
    return pointer<float>(scratch_.bytes) + first;
  }

  /// A parameter as fp32: its own bytes if it is fp32, else a copy at element `first` of the scratch.
  float* values(cudaStream_t on, DeviceTensor parameter, std::size_t first = 0) const {
    if (parameter.dtype == DType::fp32) return floats(parameter);
    float* copy = scratch(first, count(parameter));
    cuda::widen_bf16(on, pointer<const void>(parameter.bytes), copy, count(parameter));
    return copy;
  }

  static void store(cudaStream_t on, const float* from, const Gradient& gradient) {
    if (gradient.tensor.dtype == DType::fp32) {
      cuda::store_fp32(on, from, floats(gradient.tensor), count(gradient.tensor), gradient.write);
    } else {
      cuda::store_bf16(on, from, pointer<void>(gradient.tensor.bytes), count(gradient.tensor),
                       gradient.write);
    }
  }

  /// c = op(a) · op(b). cuBLAS is column-major, so it computes cᵀ = op(b)ᵀ · op(a)ᵀ.
  void product(ProductSize size, Matrix a, Matrix b, Matrix c) {
    const auto index = [](std::uint32_t n) { return static_cast<int>(n); };
    const auto op = [](const Matrix& m) { return m.transposed ? CUBLAS_OP_T : CUBLAS_OP_N; };
    const float one = 1, zero = 0;
    check(cublasSgemmStridedBatched(handle_, op(b), op(a), index(size.columns), index(size.rows),
                                    index(size.inner), &one, b.data, index(b.stride), 0, a.data,
                                    index(a.stride), 0, &zero, c.data, index(c.stride), 0, 1));
  }

  cublasHandle_t handle_;
  DeviceBuffer scratch_;
  cublasStatus_t cublas_ = CUBLAS_STATUS_SUCCESS;  // the first that is not success
  std::optional<Error> failure_;
};

/// An error of make_cuda_ops. Clears the thread's last CUDA error, which the next check of a launch would return again.
Error refused(cudaError_t error) {
  (void)cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return Error(memory ? ErrorCode::budget_too_small : ErrorCode::unsupported, "make_cuda_ops")
      .reason(std::string("CUDA: ") + cudaGetErrorString(error));
}

Result<DeviceBuffer> allocate(ByteCount size) {
  void* bytes = nullptr;
  if (const cudaError_t error = cudaMalloc(&bytes, size.value()); error != cudaSuccess) {
    return refused(error).object("scratch").wanted(size);
  }
  const auto address = penstock::DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes));
  return DeviceBuffer{.bytes = {address, size}, .owner = {bytes, [](void* memory) { cudaFree(memory); }}};
}

}  // namespace

Result<std::unique_ptr<Ops>> make_cuda_ops(ByteCount scratch) {
  PENSTOCK_TRY_ASSIGN(auto buffer, allocate(scratch));
  for (const auto load : {cuda::load_kernels, cuda::load_attention_kernels}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return refused(error);
  }
  cublasHandle_t handle = nullptr;
  if (const cublasStatus_t status = cublasCreate(&handle); status != CUBLAS_STATUS_SUCCESS) {
    const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
    return Error(memory ? ErrorCode::budget_too_small : ErrorCode::unsupported, "make_cuda_ops")
        .reason(std::string("cuBLAS: ") + cublasGetStatusString(status));
  }
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(handle, std::move(buffer)));
}

}  // namespace gpt
