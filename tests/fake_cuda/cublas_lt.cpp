// The functions of cuBLASLt that the GPT example calls.
#include "fake_cuda/cublas_lt_product.hpp"
#include "fake_cuda/runtime.hpp"

#include <cstring>
#include <type_traits>

using namespace penstock::test::fake_cuda;

namespace {

/// The device of each handle, which is the address of memory on the device, so that restart() ends it too. Guarded by
/// Runtime::mutex.
std::map<cublasLtHandle_t, int> devices_by_handle;
constexpr std::size_t handle_size = 4096, algorithm_workspace = 1024;

/// The frame of each function with a handle.
template <class Body>
cublasStatus_t call_with(cublasLtHandle_t handle, const char* function, const Body& body) {
  Runtime& runtime = Runtime::instance();
  std::unique_lock lock(runtime.mutex);
  if (runtime.enter(function, lock) != cudaSuccess) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto found = devices_by_handle.find(handle);
  const bool exists = found != devices_by_handle.end() && runtime.memory.starting_at(handle) != nullptr;
  return exists ? body(runtime, found->second) : CUBLAS_STATUS_NOT_INITIALIZED;
}
/// And of each one without.
void count_call(const char* function) {
  Runtime& runtime = Runtime::instance();
  std::unique_lock lock(runtime.mutex);
  (void)runtime.enter(function, lock);
}

/// What the opaque structures contain beside Description and Layout.
struct Preference {
  std::uint64_t workspace = 0;
  std::uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_MASK;
  std::uint32_t alignment_a = 256, alignment_b = 256, alignment_c = 256, alignment_d = 256;
};
/// An algorithm is good for the problem that it was chosen for, whose numbers these are, and for pointers so aligned.
struct Algorithm {
  std::uint64_t problem;
  std::uint32_t alignments[4];
};

template <class Inside, class Handle>
cublasStatus_t create(const char* function, Handle* handle, const Inside& inside) {
  static_assert(sizeof(Inside) <= sizeof(**handle));
  count_call(function);
  *handle = new std::remove_pointer_t<Handle>;
  new (static_cast<void*>(*handle)) Inside(inside);
  return CUBLAS_STATUS_SUCCESS;
}
template <class Inside, class Handle>
Inside& inside(Handle handle) {
  return *reinterpret_cast<Inside*>(handle);
}
template <class Value>
cublasStatus_t assign(Value& to, const void* from, std::size_t size) {
  if (from == nullptr || size != sizeof to) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, size);
  return CUBLAS_STATUS_SUCCESS;
}

bool aligned(const void* pointer, std::uint32_t alignment) {
  return alignment != 0 && reinterpret_cast<std::uintptr_t>(pointer) % alignment == 0;
}

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  if (handle == nullptr) return CUBLAS_STATUS_INVALID_VALUE;
  *handle = nullptr;
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, handle_size);
  if (error != cudaSuccess)
    (void)cudaGetLastError();  // cuBLAS has a runtime of its own, with its own last error
  if (error == cudaErrorMemoryAllocation) return CUBLAS_STATUS_ALLOC_FAILED;
  if (error != cudaSuccess) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = static_cast<cublasLtHandle_t>(memory);
  Runtime& runtime = Runtime::instance();
  const std::lock_guard lock(runtime.mutex);
  devices_by_handle[*handle] = runtime.current_device();
  return CUBLAS_STATUS_SUCCESS;
}

// Waits for the device (cuBLAS, cublasLtDestroy).
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  const cublasStatus_t status = call_with(handle, "cublasLtDestroy", [&](Runtime&, int) {
    devices_by_handle.erase(handle);
    return CUBLAS_STATUS_SUCCESS;
  });
  if (status == CUBLAS_STATUS_SUCCESS) (void)cudaFree(handle);
  return status;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* made, cublasComputeType_t compute,
                                        cudaDataType_t scale) {
  return create("cublasLtMatmulDescCreate", made, Description{.compute = compute, .scale = scale});
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t description) {
  delete description;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                              cublasLtMatmulDescAttributes_t attribute, const void* value,
                                              std::size_t size) {
  auto& description = inside<Description>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA: return assign(description.op_a, value, size);
    case CUBLASLT_MATMUL_DESC_TRANSB: return assign(description.op_b, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE: return assign(description.epilogue, value, size);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER: return assign(description.vector, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: return assign(description.other, value, size);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: return assign(description.other_leading, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* made, cudaDataType type, std::uint64_t rows,
                                          std::uint64_t columns, std::int64_t leading) {
  return create("cublasLtMatrixLayoutCreate", made, Layout{type, rows, columns, leading});
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete layout;
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* made) {
  return create("cublasLtMatmulPreferenceCreate", made, Preference{});
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  delete preference;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t handle,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, std::size_t size) {
  auto& preference = inside<Preference>(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: return assign(preference.workspace, value, size);
    case CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: return assign(preference.reductions, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: return assign(preference.alignment_a, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: return assign(preference.alignment_b, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: return assign(preference.alignment_c, value, size);
    case CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: return assign(preference.alignment_d, value, size);
    default: return CUBLAS_STATUS_INVALID_VALUE;
  }
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t description,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t preferred, int wanted,
                                              cublasLtMatmulHeuristicResult_t* results, int* found) {
  return call_with(handle, "cublasLtMatmulAlgoGetHeuristic", [&](Runtime&, int) {
    if (description == nullptr || a == nullptr || b == nullptr || c == nullptr || d == nullptr ||
        preferred == nullptr || wanted <= 0 || results == nullptr || found == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    *found = 0;
    const Product product{.description = inside<Description>(description),
                          .a = inside<Layout>(a),
                          .b = inside<Layout>(b),
                          .c = inside<Layout>(c),
                          .d = inside<Layout>(d)};
    const auto& preference = inside<Preference>(preferred);
    if (const cublasStatus_t status = product.check(); status != CUBLAS_STATUS_SUCCESS) return status;
    if (preference.workspace < algorithm_workspace) return CUBLAS_STATUS_NOT_SUPPORTED;
    const Algorithm algorithm{
        product.fingerprint(),
        {preference.alignment_a, preference.alignment_b, preference.alignment_c, preference.alignment_d}};
    *results = {.workspaceSize = algorithm_workspace, .state = CUBLAS_STATUS_SUCCESS};
    std::memcpy(&results->algo, &algorithm, sizeof algorithm);
    *found = 1;
    return CUBLAS_STATUS_SUCCESS;
  });
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t description, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* chosen, void* workspace, std::size_t workspace_size,
                              cudaStream_t stream_handle) {
  return call_with(handle, "cublasLtMatmul", [&](Runtime& runtime, int device) {
    if (description == nullptr || a_layout == nullptr || b_layout == nullptr || c_layout == nullptr ||
        d_layout == nullptr || alpha == nullptr || beta == nullptr || a == nullptr || b == nullptr ||
        c == nullptr || d == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const Product product{.description = inside<Description>(description),
                          .a = inside<Layout>(a_layout),
                          .b = inside<Layout>(b_layout),
                          .c = inside<Layout>(c_layout),
                          .d = inside<Layout>(d_layout),
                          .a_data = a,
                          .b_data = b,
                          .c_data = c,
                          .d_data = d,
                          .alpha = *static_cast<const float*>(alpha),
                          .beta = *static_cast<const float*>(beta)};
    if (const cublasStatus_t status = product.check(); status != CUBLAS_STATUS_SUCCESS) return status;
    Algorithm algorithm{};
    if (chosen == nullptr) return CUBLAS_STATUS_NOT_SUPPORTED;  // cuBLASLt would choose one at each call
    std::memcpy(&algorithm, chosen, sizeof algorithm);
    if (algorithm.problem != product.fingerprint()) return CUBLAS_STATUS_NOT_SUPPORTED;
    if (workspace_size < algorithm_workspace ||
        runtime.memory.containing(workspace, workspace_size) == nullptr) {
      return CUBLAS_STATUS_INVALID_VALUE;
    }
    const void* const pointers[] = {a, b, c, d};
    for (std::size_t i = 0; i < 4; ++i) {
      if (!aligned(pointers[i], algorithm.alignments[i])) return CUBLAS_STATUS_INVALID_VALUE;
    }
    const auto stream = runtime.stream(stream_handle);
    if (stream == nullptr || stream->device() != device || runtime.current_device() != device) {
      return CUBLAS_STATUS_EXECUTION_FAILED;
    }
    runtime.append(stream, [product] { return product.run(); });
    return CUBLAS_STATUS_SUCCESS;
  });
}

const char* cublasLtGetStatusString(cublasStatus_t status) {
  switch (status) {
    case CUBLAS_STATUS_SUCCESS: return "success";
    case CUBLAS_STATUS_NOT_INITIALIZED: return "the library was not initialized";
    case CUBLAS_STATUS_ALLOC_FAILED: return "the resource allocation failed";
    case CUBLAS_STATUS_INVALID_VALUE: return "an unsupported value or parameter was passed to the function";
    case CUBLAS_STATUS_NOT_SUPPORTED: return "the functionality requested is not supported";
    case CUBLAS_STATUS_EXECUTION_FAILED: return "the function failed to launch on the GPU";
    default: return "unknown";
  }
}

}  // extern "C"
