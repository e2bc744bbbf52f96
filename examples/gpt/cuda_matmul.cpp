#include "gpt/cuda_matmul.hpp"

#include <cuda_runtime_api.h>

#include <utility>

namespace gpt {

using penstock::DType;

namespace {

constexpr std::size_t workspace_size = std::size_t{32}
                                       << 20;  // cuBLAS recommends it for Hopper (cublasSetWorkspace)
constexpr std::uint32_t alignment = 16;

cudaDataType data_type(DType dtype) {
  return dtype == DType::fp32 ? CUDA_R_32F : CUDA_R_16BF;
}

cublasLtEpilogue_t epilogue(CudaMatmul::Epilogue wanted) {
  switch (wanted) {
    case CudaMatmul::Epilogue::none: break;
    case CudaMatmul::Epilogue::add_bias: return CUBLASLT_EPILOGUE_BIAS;
    case CudaMatmul::Epilogue::gelu: return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case CudaMatmul::Epilogue::gelu_backward: return CUBLASLT_EPILOGUE_DGELU;
    case CudaMatmul::Epilogue::row_sums: return CUBLASLT_EPILOGUE_BGRADB;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

struct Destroy {
  void operator()(cublasLtMatmulDesc_t handle) const { cublasLtMatmulDescDestroy(handle); }
  void operator()(cublasLtMatrixLayout_t handle) const { cublasLtMatrixLayoutDestroy(handle); }
  void operator()(cublasLtMatmulPreference_t handle) const { cublasLtMatmulPreferenceDestroy(handle); }
};
template <class Handle>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy>;
using Layout = Owned<cublasLtMatrixLayout_t>;

/// The first status that is not success; what follows it does nothing.
class FirstFailure {
 public:
  template <class Call>
  void then(const Call& call) {
    if (status_ == CUBLAS_STATUS_SUCCESS) status_ = call();
  }
  /// A layout of a row-major matrix, which to cuBLAS is the transposed one in columns.
  Layout layout(DType dtype, std::uint32_t rows, std::uint32_t columns, std::uint32_t stride) {
    cublasLtMatrixLayout_t made = nullptr;
    const std::uint32_t leading = stride == 0 ? columns : stride;
    then([&] { return cublasLtMatrixLayoutCreate(&made, data_type(dtype), columns, rows, leading); });
    return Layout(made);
  }
  template <class Value>
  void set(const Owned<cublasLtMatmulDesc_t>& description, cublasLtMatmulDescAttributes_t attribute,
           const Value& value) {
    then([&] { return cublasLtMatmulDescSetAttribute(description.get(), attribute, &value, sizeof value); });
  }
  template <class Value>
  void set(const Owned<cublasLtMatmulPreference_t>& preference,
           cublasLtMatmulPreferenceAttributes_t attribute, const Value& value) {
    then([&] {
      return cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof value);
    });
  }
  [[nodiscard]] cublasStatus_t status() const { return status_; }

 private:
  cublasStatus_t status_ = CUBLAS_STATUS_SUCCESS;
};

}  // namespace

/// What cuBLASLt needs to know of a shape. Its a and b are ours exchanged: it computes the transposed result.
struct CudaMatmul::Plan {
  Owned<cublasLtMatmulDesc_t> description;
  Layout a, b, c, d;  // c and d are layouts of their own, because they may be two tensors
  cublasLtMatmulAlgo_t algorithm{};

  /// Before an algorithm is chosen too: it may depend on the alignment of the pointers.
  void set_pointers(FirstFailure& calls, const Tensors& tensors) const {
    if (tensors.vector != nullptr) calls.set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, tensors.vector);
    if (tensors.other != nullptr)
      calls.set(description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, tensors.other);
  }
};

cublasStatus_t CudaMatmul::create(std::unique_ptr<CudaMatmul>& made) {
  std::unique_ptr<CudaMatmul> products(new CudaMatmul);
  if (const cublasStatus_t status = cublasLtCreate(&products->handle_); status != CUBLAS_STATUS_SUCCESS)
    return status;
  if (cudaMalloc(&products->workspace_, workspace_size) != cudaSuccess) {
    (void)cudaGetLastError();
    return CUBLAS_STATUS_ALLOC_FAILED;
  }
  made = std::move(products);
  return CUBLAS_STATUS_SUCCESS;
}

CudaMatmul::~CudaMatmul() {
  plans_.clear();
  if (workspace_ != nullptr) cudaFree(workspace_);
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

cublasStatus_t CudaMatmul::plan(const Shape& shape, const Tensors& tensors, Plan*& found) {
  std::unique_ptr<Plan>& kept = plans_[shape];
  found = kept.get();
  if (found != nullptr) return CUBLAS_STATUS_SUCCESS;

  auto made = std::make_unique<Plan>();
  FirstFailure calls;
  cublasLtMatmulDesc_t description = nullptr;
  calls.then([&] { return cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32F, CUDA_R_32F); });
  made->description.reset(description);
  const auto operation = [](bool transposes) { return transposes ? CUBLAS_OP_T : CUBLAS_OP_N; };
  calls.set(made->description, CUBLASLT_MATMUL_DESC_TRANSA, operation(shape.transposes_b));
  calls.set(made->description, CUBLASLT_MATMUL_DESC_TRANSB, operation(shape.transposes_a));
  calls.set(made->description, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue(shape.epilogue));
  if (tensors.other != nullptr) {
    calls.set(made->description, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD,
              std::int64_t{shape.d_stride == 0 ? shape.columns : shape.d_stride});
  }
  made->set_pointers(calls, tensors);
  const auto stored = [&](bool transposes, std::uint32_t rows, std::uint32_t columns, std::uint32_t stride) {
    return transposes ? calls.layout(DType::bf16, columns, rows, stride)
                      : calls.layout(DType::bf16, rows, columns, stride);
  };
  made->a = stored(shape.transposes_b, shape.inner, shape.columns, 0);
  made->b = stored(shape.transposes_a, shape.rows, shape.inner, shape.a_stride);
  made->c = calls.layout(shape.result, shape.rows, shape.columns, shape.d_stride);
  made->d = calls.layout(shape.result, shape.rows, shape.columns, shape.d_stride);

  cublasLtMatmulPreference_t created = nullptr;
  calls.then([&] { return cublasLtMatmulPreferenceCreate(&created); });
  const Owned<cublasLtMatmulPreference_t> preference(created);
  calls.set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_size);
  // Partial sums are added by one kernel in its order, not by several in the order in which they end.
  calls.set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
            std::uint32_t{CUBLASLT_REDUCTION_SCHEME_NONE | CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
  for (const auto of :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
    calls.set(preference, of, alignment);
  }
  cublasLtMatmulHeuristicResult_t result{};
  int results = 0;
  calls.then([&] {
    return cublasLtMatmulAlgoGetHeuristic(handle_, made->description.get(), made->a.get(), made->b.get(),
                                          made->c.get(), made->d.get(), preference.get(), 1, &result,
                                          &results);
  });
  calls.then([&] { return results > 0 ? result.state : CUBLAS_STATUS_NOT_SUPPORTED; });
  if (calls.status() != CUBLAS_STATUS_SUCCESS) return calls.status();
  made->algorithm = result.algo;
  kept = std::move(made);
  found = kept.get();
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t CudaMatmul::run(cudaStream_t stream, const Shape& shape, const Tensors& tensors) {
  Plan* plan_of_shape = nullptr;
  const float beta = shape.adds ? 1.0f : 0.0f;
  FirstFailure calls;
  calls.then([&] { return plan(shape, tensors, plan_of_shape); });
  if (calls.status() != CUBLAS_STATUS_SUCCESS) return calls.status();
  const Plan& with = *plan_of_shape;
  with.set_pointers(calls, tensors);
  calls.then([&] {
    return cublasLtMatmul(handle_, with.description.get(), &tensors.scale, tensors.b, with.a.get(), tensors.a,
                          with.b.get(), &beta, shape.adds ? tensors.c : tensors.d, with.c.get(), tensors.d,
                          with.d.get(), &with.algorithm, workspace_, workspace_size, stream);
  });
  return calls.status();
}

}  // namespace gpt
