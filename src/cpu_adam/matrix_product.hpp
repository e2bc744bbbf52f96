#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <cstdint>
#include <string>

namespace penstock::cpu_adam {

/// A row-major matrix. Both are 0 for none.
struct MatrixShape {
  std::uint64_t rows = 0, columns = 0;

  [[nodiscard]] constexpr ElementCount elements() const { return ElementCount(rows * columns); }
  [[nodiscard]] constexpr bool operator==(const MatrixShape&) const = default;
};

/// Products of matrices in fp32, by the BLAS of the machine. It is limited to one thread for the whole process, because
/// each product is divided among workers, in parts that do not depend on their number.
class MatrixProduct {
 public:
  /// That of the process: the file that the environment variable PENSTOCK_BLAS names, else OpenBLAS, MKL or libblas,
  /// the first that the dynamic linker finds. Loaded by the first call and never unloaded. Safe from any thread.
  ///
  /// Errors: those of load(), of the last one that was tried.
  [[nodiscard]] static Result<const MatrixProduct*> instance();
  /// Loads `file`, which is not unloaded any more. Errors: unsupported, for a file that cannot be loaded or has no
  /// cblas_sgemm, and where RLIMIT_AS leaves too little for its threads.
  [[nodiscard]] static Result<MatrixProduct> load(const std::string& file);

  /// A matrix, or its transpose, in rows that begin `stride` elements after each other.
  struct Operand {
    const float* data = nullptr;
    std::uint64_t stride = 0;
    bool transposed = false;
  };
  /// c = factor a b + keep c, where `c` has `shape`, rows that begin `stride` elements after each other, and `a` has
  /// `inner` columns. c is not read if `keep` is 0. On the calling thread; all sizes are below 2^31.
  void add(MatrixShape shape, std::uint64_t inner, float factor, Operand a, Operand b, float keep, float* c,
           std::uint64_t stride) const noexcept;
  /// The file, or what computes the products instead: "libopenblas.so.0".
  [[nodiscard]] const std::string& name() const { return name_; }

 private:
  MatrixProduct() = default;
  void (*sgemm_)() = nullptr;  // cblas_sgemm
  void (*limit_caller_)(int) =
      nullptr;  // limits the calling thread; null where limiting the process suffices
  std::string name_;
};

}  // namespace penstock::cpu_adam
