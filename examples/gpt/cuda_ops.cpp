#include "gpt/cuda_ops.hpp"

#include "gpt/cuda_attention.hpp"
#include "gpt/cuda_kernels.hpp"
#include "gpt/cuda_matmul.hpp"
#include "gpt/device_memory.hpp"
#include "gpt/model_description.hpp"
#include "gpt/tensor_pointer.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <cstddef>
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

constexpr penstock::Alignment scratch_alignment{256};

class CudaOps final : public Ops {
 public:
  CudaOps(std::unique_ptr<CudaMatmul> products, DeviceBuffer scratch)
      : products_(std::move(products)), scratch_(std::move(scratch)) {}

  DType operand_dtype() const override { return DType::bf16; }
  bool supports(DType parameter) const override { return parameter != DType::fp16; }
  OpsLimits limits() const override { return cuda::attention_limits; }

  Result<void> status() const override {
    if (failure_) return *failure_;
    return penstock::ok();
  }

  void linear(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor y) override {
    run("Ops::linear", stream, [&](cudaStream_t on) {
      multiply(on, forward(size, bias_of(in), y),
               {.a = pointer<void>(in.x),
                .b = rounded(on, in.w),
                .d = block(size, y),
                .vector = vector(on, in.b, y.dtype),
                .scale = size.scale});
    });
  }

  void linear_add(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor residual,
                  DeviceTensor y) override {
    run("Ops::linear_add", stream, [&](cudaStream_t on) {
      CudaMatmul::Shape shape = forward(size, bias_of(in), y);
      shape.adds = true;
      multiply(on, shape,
               {.a = pointer<void>(in.x),
                .b = rounded(on, in.w),
                .c = block(size, residual),
                .d = block(size, y),
                .vector = vector(on, in.b, y.dtype),
                .scale = size.scale});
    });
  }

  void linear_gelu(StreamHandle stream, MatmulSize size, const Linear& in, DeviceTensor up,
                   DeviceTensor y) override {
    run("Ops::linear_gelu", stream, [&](cudaStream_t on) {
      multiply(on, forward(size, Epilogue::gelu, y),
               {.a = pointer<void>(in.x),
                .b = rounded(on, in.w),
                .d = block(size, y),
                .vector = vector(on, in.b, y.dtype),
                .other = block(size, up),
                .scale = size.scale});
    });
  }

  void linear_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                       const Gradient& dx) override {
    run("Ops::linear_backward", stream, [&](cudaStream_t on) {
      CudaMatmul::Shape shape = backward(size, Epilogue::none, dx.tensor);
      shape.adds = dx.write == GradientWrite::accumulate;
      multiply(on, shape,
               {.a = block(size, dy),
                .b = rounded(on, w),
                .c = pointer<void>(dx.tensor),
                .d = pointer<void>(dx.tensor),
                .scale = size.scale});
    });
  }

  void linear_gelu_backward(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor w,
                            DeviceTensor up, DeviceTensor dup) override {
    run("Ops::linear_gelu_backward", stream, [&](cudaStream_t on) {
      multiply(on, backward(size, Epilogue::gelu_backward, dup),
               {.a = pointer<void>(dy),
                .b = rounded(on, w),
                .d = pointer<void>(dup),
                .other = pointer<void>(up),
                .scale = size.scale});
    });
  }

  void linear_gradients(StreamHandle stream, MatmulSize size, DeviceTensor dy, DeviceTensor x, Gradient dw,
                        Gradient db) override {
    run("Ops::linear_gradients", stream, [&](cudaStream_t on) {
      // The epilogue's sums can neither be added to the old ones nor have another dtype than the product.
      const bool weighed = count(dw.tensor) > 0, biased = count(db.tensor) > 0;
      const bool sums =
          weighed && biased && db.write == GradientWrite::overwrite && db.tensor.dtype == dw.tensor.dtype;
      if (weighed) {
        multiply(on,
                 {.rows = size.outputs,
                  .columns = size.inputs,
                  .inner = size.rows,
                  .a_stride = size.columns,
                  .transposes_a = true,
                  .adds = dw.write == GradientWrite::accumulate,
                  .epilogue = sums ? Epilogue::row_sums : Epilogue::none,
                  .result = dw.tensor.dtype},
                 {.a = block(size, dy),
                  .b = pointer<void>(x),
                  .c = pointer<void>(dw.tensor),
                  .d = pointer<void>(dw.tensor),
                  .vector = sums ? pointer<void>(db.tensor) : nullptr,
                  .scale = size.scale});
      }
      if (biased && !sums) {
        cuda::column_sums(on, {size.rows, size.outputs}, size.columns, block(size, dy),
                          part_sums(1, size.outputs), db);
      }
    });
  }

  void gelu_backward(StreamHandle stream, DeviceTensor dy, DeviceTensor up, DeviceTensor dup) override {
    run("Ops::gelu_backward", stream, [&](cudaStream_t on) {
      cuda::gelu_backward(on, floats(dy), pointer<void>(up), pointer<void>(dup), count(dup));
    });
  }

  void round(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    run("Ops::round", stream,
        [&](cudaStream_t on) { cuda::round(on, floats(x), pointer<void>(y), count(x)); });
  }

  void add(StreamHandle stream, DeviceTensor x, DeviceTensor y) override {
    run("Ops::add", stream, [&](cudaStream_t on) { cuda::add(on, floats(x), floats(y), count(x)); });
  }

  void layer_norm(StreamHandle stream, RowsSize size, DeviceTensor x, DeviceTensor gain, DeviceTensor b,
                  DeviceTensor y, DeviceTensor statistics) override {
    run("Ops::layer_norm", stream, [&](cudaStream_t on) {
      cuda::layer_norm(on, size, floats(x), gain, b, pointer<void>(y), floats(statistics));
    });
  }

  void layer_norm_backward(StreamHandle stream, RowsSize size, const LayerNormBackward& t) override {
    run("Ops::layer_norm_backward", stream, [&](cudaStream_t on) {
      cuda::layer_norm_backward(on, size,
                                {.x = floats(t.x),
                                 .gain = t.gain,
                                 .statistics = floats(t.statistics),
                                 .dy = floats(t.dy),
                                 .dx = floats(t.dx),
                                 .dgain = t.dgain,
                                 .db = t.db},
                                part_sums(2, size.columns));
    });
  }

  void attention(StreamHandle stream, AttentionSize size, DeviceTensor qkv, DeviceTensor log_sums,
                 DeviceTensor y) override {
    run("Ops::attention", stream, [&](cudaStream_t on) {
      cuda::attention(on, size, pointer<void>(qkv), floats(log_sums), pointer<void>(y));
    });
  }

  void attention_backward(StreamHandle stream, AttentionSize size, const AttentionBackward& t) override {
    run("Ops::attention_backward", stream, [&](cudaStream_t on) {
      cuda::attention_backward(on, size,
                               {.qkv = pointer<void>(t.qkv),
                                .log_sums = floats(t.log_sums),
                                .y = pointer<void>(t.y),
                                .dy = pointer<void>(t.dy),
                                .projections = floats(t.projections),
                                .dqkv = pointer<void>(t.dqkv)});
    });
  }

  void embed(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor embedding,
             DeviceTensor positions, DeviceTensor y) override {
    run("Ops::embed", stream, [&](cudaStream_t on) {
      cuda::embed(on, size, pointer<const std::uint8_t>(tokens), embedding, positions, floats(y));
    });
  }

  void embed_backward(StreamHandle stream, EmbeddingSize size, DeviceSpan tokens, DeviceTensor dy,
                      Gradient dembedding, Gradient dpositions) override {
    run("Ops::embed_backward", stream, [&](cudaStream_t on) {
      cuda::embed_backward(on, size, pointer<const std::uint8_t>(tokens), floats(dy), dembedding, dpositions);
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
                                   pointer<void>(dlogits));
    });
  }

 private:
  using Epilogue = CudaMatmul::Epilogue;

  template <class Operation>
  void run(const char* name, StreamHandle stream, Operation operation) {
    if (failure_) return;
    scratch_used_ = 0;
    operation(static_cast<cudaStream_t>(stream.native()));
    // cuBLAS does not name the error of an operation that was enqueued before; CUDA does.
    const cudaError_t error = cudaGetLastError();
    if (error == cudaSuccess && cublas_ == CUBLAS_STATUS_SUCCESS) return;
    failure_ = Error(ErrorCode::failed_state, name)
                   .reason(error != cudaSuccess ? std::string("CUDA: ") + cudaGetErrorString(error)
                                                : std::string("cuBLAS: ") + cublasLtGetStatusString(cublas_));
  }

  /// x · wᵀ and dy · w.
  static CudaMatmul::Shape forward(MatmulSize size, Epilogue epilogue, DeviceTensor result) {
    return {.rows = size.rows,
            .columns = size.outputs,
            .inner = size.inputs,
            .d_stride = size.columns,
            .transposes_b = true,
            .epilogue = epilogue,
            .result = result.dtype};
  }
  static CudaMatmul::Shape backward(MatmulSize size, Epilogue epilogue, DeviceTensor result) {
    return {.rows = size.rows,
            .columns = size.inputs,
            .inner = size.outputs,
            .a_stride = size.columns,
            .epilogue = epilogue,
            .result = result.dtype};
  }
  /// Where the columns of a block begin.
  static void* block(MatmulSize size, DeviceTensor y) {
    return pointer<std::byte>(y) + size_of(y.dtype).value() * size.first;
  }
  void multiply(cudaStream_t on, const CudaMatmul::Shape& shape, const CudaMatmul::Tensors& tensors) {
    const cublasStatus_t status = products_->run(on, shape, tensors);
    if (cublas_ == CUBLAS_STATUS_SUCCESS) cublas_ = status;
  }

  /// Scratch of this operation, beside what it has taken already.
  void* take_scratch(std::size_t size) {
    const std::size_t first = scratch_used_;
    scratch_used_ += penstock::round_up(ByteCount(size), scratch_alignment).value();
    PENSTOCK_CHECK(scratch_used_ <= scratch_.bytes.size().value());
    return pointer<std::byte>(scratch_.bytes) + first;
  }
  float* part_sums(std::size_t vectors, std::uint32_t columns) {
    return static_cast<float*>(take_scratch(vectors * columns * cuda::row_parts_max * sizeof(float)));
  }
  /// A parameter as bf16: its own bytes, or a rounded copy.
  const void* rounded(cudaStream_t on, DeviceTensor parameter) {
    if (parameter.dtype == DType::bf16) return pointer<void>(parameter);
    void* const copy = take_scratch(count(parameter) * 2);
    cuda::round(on, floats(parameter), copy, count(parameter));
    return copy;
  }
  static Epilogue bias_of(const Linear& in) { return count(in.b) > 0 ? Epilogue::add_bias : Epilogue::none; }
  /// A bias in the dtype of a product's result, as the epilogue needs it; null without one.
  void* vector(cudaStream_t on, DeviceTensor bias, DType dtype) {
    if (count(bias) == 0) return nullptr;
    if (bias.dtype == dtype) return pointer<void>(bias);
    void* const copy = take_scratch(count(bias) * size_of(dtype).value());
    if (dtype == DType::fp32) {
      cuda::widen(on, pointer<void>(bias), static_cast<float*>(copy), count(bias));
    } else {
      cuda::round(on, floats(bias), copy, count(bias));
    }
    return copy;
  }

  const std::unique_ptr<CudaMatmul> products_;
  const DeviceBuffer scratch_;
  std::size_t scratch_used_ = 0;
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

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  (void)cudaGetLastError();
  return 0;
}

ByteCount cuda_scratch_size(const ModelConfig& config) {
  // A matrix that is rounded and a bias, or the sums of parts of a bias; and three alignments.
  const std::uint64_t wide = 4 * std::uint64_t{config.width};
  const std::uint64_t matrix = ModelDescription(config).scratch_count().value() * 2;
  return ByteCount(matrix + wide * sizeof(float) * (1 + cuda::row_parts_max)) +
         ByteCount(3 * scratch_alignment.bytes());
}

Result<std::unique_ptr<Ops>> make_cuda_ops(ByteCount scratch) {
  PENSTOCK_TRY_ASSIGN(auto buffer, allocate(scratch));
  for (const auto load : {cuda::load_kernels, cuda::load_attention_kernels}) {
    if (const cudaError_t error = load(); error != cudaSuccess) return refused(error);
  }
  std::unique_ptr<CudaMatmul> products;
  if (const cublasStatus_t status = CudaMatmul::create(products); status != CUBLAS_STATUS_SUCCESS) {
    const bool memory = status == CUBLAS_STATUS_ALLOC_FAILED;
    return Error(memory ? ErrorCode::budget_too_small : ErrorCode::unsupported, "make_cuda_ops")
        .reason(std::string("cuBLAS: ") + cublasLtGetStatusString(status));
  }
  return std::unique_ptr<Ops>(std::make_unique<CudaOps>(std::move(products), std::move(buffer)));
}

}  // namespace gpt
