#include "cpu_adam/matrix_product.hpp"

#include "base/address_space.hpp"

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

namespace penstock::cpu_adam {

namespace {

// The C interface of BLAS with 32-bit sizes (netlib's cblas.h).
constexpr int row_major = 101, not_transposed = 111, transposed = 112;
using Sgemm = void (*)(int order, int transpose_a, int transpose_b, int rows, int columns, int inner,
                       float factor, const float* a, int stride_a, const float* b, int stride_b, float keep,
                       float* c, int stride_c);

using Function = void (*)();
Function find(void* library, const char* name) {
  return reinterpret_cast<Function>(dlsym(library, name));
}

/// As OpenBLAS takes it from its environment.
std::uint32_t blas_threads() {
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  for (const char* const name : {"OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"}) {
    const char* const text = std::getenv(name);
    const int threads = text == nullptr ? 0 : std::atoi(text);
    if (threads > 0) return std::min(static_cast<std::uint32_t>(threads), cores);
  }
  return cores;
}

/// OpenBLAS starts its threads when it is loaded. Each reserves 128 MiB, and loops for ever where it gets none; the C
/// library takes a stack and 64 MiB for the allocations of each. Whether `file` is OpenBLAS is known only once it is
/// loaded.
Result<void> check_address_space(const std::string& file) {
  const auto left = address_space_left();
  if (!left || dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) != nullptr)
    return ok();  // or its threads have begun
  std::size_t stack = 0;
  if (pthread_attr_t attributes; pthread_getattr_default_np(&attributes) == 0) {
    (void)pthread_attr_getstacksize(&attributes, &stack);
    (void)pthread_attr_destroy(&attributes);
  }
  const ByteCount needed = (192_MiB + ByteCount(stack)) * blas_threads();
  if (*left >= needed) return ok();
  return Error::unsupported("MatrixProduct::load")
      .object(file)
      .reason(
          "the limit on address space leaves too little for the BLAS library, which could not start its "
          "threads")
      .wanted(needed)
      .got(*left)
      .advice(
          "raise RLIMIT_AS (ulimit -v), limit memory with a control group instead, or set "
          "OPENBLAS_NUM_THREADS=1");
}

/// Each has a function of its own for that; one without threads has none.
void limit_to_one_thread(void* library) {
  for (const char* const name :
       {"openblas_set_num_threads", "MKL_Set_Num_Threads", "bli_thread_set_num_threads"}) {
    if (const auto set = reinterpret_cast<void (*)(int)>(find(library, name))) return set(1);
  }
}

#ifdef __SANITIZE_THREAD__
/// The thread sanitizer reports false races in a BLAS, which is not built with it.
void plain_sgemm(int, int transpose_a, int transpose_b, int rows, int columns, int inner, float factor,
                 const float* a, int stride_a, const float* b, int stride_b, float keep, float* c,
                 int stride_c) {
  const auto element = [](const float* m, int transpose, int stride, int row, int column) {
    return transpose == transposed ? m[std::int64_t{column} * stride + row]
                                   : m[std::int64_t{row} * stride + column];
  };
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < columns; ++j) {
      float sum = 0;
      for (int k = 0; k < inner; ++k)
        sum += element(a, transpose_a, stride_a, i, k) * element(b, transpose_b, stride_b, k, j);
      float& result = c[std::int64_t{i} * stride_c + j];
      result = keep == 0 ? factor * sum : factor * sum + keep * result;
    }
  }
}
#endif

}  // namespace

Result<MatrixProduct> MatrixProduct::load(const std::string& file) {
  const auto unusable = [&](const char* reason) {
    const char* const text = dlerror();
    return Error::unsupported("MatrixProduct::load")
        .object(file)
        .reason(reason)
        .note(std::string("cause   ") + (text == nullptr ? "no reason given" : text))
        .advice("install OpenBLAS (libopenblas0), or set PENSTOCK_BLAS to the path of a BLAS library");
  };
  PENSTOCK_TRY(check_address_space(file));
  void* const library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) return unusable("the BLAS library, which multiplies matrices, cannot be loaded");
  MatrixProduct product;
  product.name_ = file;
  product.sgemm_ = find(library, "cblas_sgemm");
  if (product.sgemm_ == nullptr) return unusable("the library has no cblas_sgemm");
  limit_to_one_thread(library);
  // An OpenBLAS that is built with OpenMP takes the number of threads of each caller.
  if (const auto kind = reinterpret_cast<int (*)()>(find(library, "openblas_get_parallel"));
      kind && kind() == 2)
    product.limit_caller_ = reinterpret_cast<void (*)(int)>(find(library, "omp_set_num_threads"));
#ifdef __SANITIZE_THREAD__
  product.sgemm_ = reinterpret_cast<Function>(&plain_sgemm);
#endif
  return product;
}

Result<const MatrixProduct*> MatrixProduct::instance() {
  static const Result<MatrixProduct> product = [] {
    if (const char* const file = std::getenv("PENSTOCK_BLAS"); file != nullptr && *file != '\0') {
      auto named = load(file);
      if (!named) named = Error(named.error()).where("the environment variable PENSTOCK_BLAS");
      return named;
    }
    for (const char* const file : {"libopenblas.so.0", "libmkl_rt.so.2"}) {
      if (auto loaded = load(file)) return loaded;
    }
    return load("libblas.so.3");
  }();
  if (!product) return product.error();
  return &*product;
}

void MatrixProduct::add(MatrixShape shape, std::uint64_t inner, float factor, Operand a, Operand b,
                        float keep, float* c, std::uint64_t stride) const noexcept {
  const auto transpose = [](const Operand& operand) {
    return operand.transposed ? transposed : not_transposed;
  };
  if (limit_caller_ != nullptr) limit_caller_(1);
  reinterpret_cast<Sgemm>(sgemm_)(row_major, transpose(a), transpose(b), static_cast<int>(shape.rows),
                                  static_cast<int>(shape.columns), static_cast<int>(inner), factor, a.data,
                                  static_cast<int>(a.stride), b.data, static_cast<int>(b.stride), keep, c,
                                  static_cast<int>(stride));
}

}  // namespace penstock::cpu_adam
