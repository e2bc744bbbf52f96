#pragma once

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

/// An interpreter of kernels compiled to PTX. Runs them on the CPU, one thread after the other, and implements the part
/// of the "PTX ISA" that our kernels use; threads exchange data only in shuffles. Addresses are host addresses.
///
/// Throws std::runtime_error for an unknown kernel or instruction, naming it, and if not all threads of a warp reach a
/// shuffle.
class PtxModule {
 public:
  explicit PtxModule(const std::filesystem::path& file);

  struct Grid {
    std::uint32_t blocks, threads;
  };
  /// `kernel` as it is written in C++, with its template arguments and without spaces:
  /// "cast_kernel<float,penstock::kernels::Bf16>".
  template <class... Arguments>
  void launch(const std::string& kernel, Grid grid, const Arguments&... arguments) const {
    run(kernel, grid, {bytes_of(arguments)...});
  }

 private:
  using Bytes = std::vector<std::byte>;
  struct Kernel {
    std::vector<std::pair<std::string, std::size_t>> parameters;  ///< their names and sizes
    std::vector<std::string> lines;                               ///< instructions, without their semicolons
    std::map<std::string, std::size_t> labels;                    ///< the instruction that each stands before
  };

  template <class T>
  static Bytes bytes_of(const T& value) {
    Bytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  void run(const std::string& kernel, Grid grid, const std::vector<Bytes>& arguments) const;

  std::map<std::string, Kernel> kernels_;  // by what they are called in C++
};

/// What elements of a dtype are called in the template arguments of a kernel.
[[nodiscard]] std::string cuda_type(DType dtype);

}  // namespace penstock::test
