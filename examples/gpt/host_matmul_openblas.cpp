// OpenBLAS is loaded by the first rank instead of being linked. As soon as it is loaded it starts a thread for each
// further core, and each of them tries to reserve 128 MiB until it succeeds; the end of the process waits for them. A
// program that is linked to it never ends where its address space is limited to less.
#include "gpt/host_matmul.hpp"

#include <cblas.h>
#include <dlfcn.h>

#include <string>

namespace gpt::host {

namespace {

constexpr const char* openblas_file = "libopenblas.so.0";

decltype(&cblas_sgemm) sgemm = nullptr;

CBLAS_TRANSPOSE cblas(Transpose transpose) {
  return transpose == Transpose::yes ? CblasTrans : CblasNoTrans;
}

penstock::Result<void> load_openblas() {
  void* const library = ::dlopen(openblas_file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  void* const product = library == nullptr ? nullptr : ::dlsym(library, "cblas_sgemm");
  void* const limit = library == nullptr ? nullptr : ::dlsym(library, "openblas_set_num_threads");
  if (product == nullptr || limit == nullptr) {
    const char* const cause = ::dlerror();
    return penstock::Error::unsupported("prepare_products")
        .object(openblas_file)
        .reason("the library that multiplies matrices on the host cannot be loaded")
        .note(std::string("cause   ") + (cause == nullptr ? "no reason given" : cause))
        .advice("install it (libopenblas0), or build without its headers: a plain loop replaces it");
  }
  reinterpret_cast<decltype(&openblas_set_num_threads)>(limit)(1);
  sgemm = reinterpret_cast<decltype(&cblas_sgemm)>(product);
  return penstock::ok();
}

}  // namespace

void product(ProductSize size, Matrix<const float> a, Matrix<const float> b, Matrix<float> c, bool add,
             float scale) noexcept {
  const auto index = [](std::uint32_t n) { return static_cast<blasint>(n); };
  sgemm(CblasRowMajor, cblas(a.transpose), cblas(b.transpose), index(size.rows), index(size.columns),
        index(size.inner), scale, a.data, index(a.stride), b.data, index(b.stride), add ? 1.0f : 0.0f, c.data,
        index(c.stride));
}

penstock::Result<void> prepare_products() {
  static const penstock::Result<void> loaded = load_openblas();
  return loaded;
}

}  // namespace gpt::host
