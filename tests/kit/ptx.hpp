#pragma once

#include "kit/ptx_instructions.hpp"

#include <penstock/base/dtype.hpp>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {

/// An interpreter of kernels compiled to PTX. Runs them on the CPU, one thread after the other, each to the next
/// instruction of a whole warp or barrier, and implements the part of the "PTX ISA" that our kernels use. A kernel is
/// decoded once.
///
/// Throws std::runtime_error for an unknown kernel or instruction, naming it, if not all threads of a warp reach one of
/// its instructions or not all of a block a barrier, for misaligned accesses, and for accesses to shared memory that a
/// barrier should separate. Safe from any thread.
class PtxModule {
 public:
  explicit PtxModule(const std::filesystem::path& file, ptx::Arithmetic arithmetic = ptx::Arithmetic::exact);

  struct Grid {
    std::uint32_t blocks, threads;
  };
  /// Runs `kernel` on host memory: addresses are host addresses. Its name is as it is written in C++, with its template
  /// arguments and without spaces: "cast_kernel<float,penstock::kernels::Bf16>".
  template <class... Arguments>
  void launch(const std::string& kernel, Grid grid, const Arguments&... arguments) const {
    run_on_host(kernel, grid, {bytes_of(arguments)...});
  }

  using Launch = std::function<void(const ptx::Memory&)>;
  /// Copies the arguments, each of the size of its parameter; the result runs the kernel. The module outlives it.
  [[nodiscard]] Launch bind(const std::string& kernel, Grid grid, const void* const* arguments) const;

  [[nodiscard]] bool has(const std::string& kernel) const { return kernels_.contains(kernel); }
  /// The kernel's name for launch() and bind(), of a mangled name.
  [[nodiscard]] static std::string name_in_cpp(const std::string& mangled);

 private:
  using Bytes = std::vector<std::byte>;
  struct Program;
  struct Kernel {
    std::vector<std::pair<std::string, std::size_t>> parameters;  ///< their names and sizes
    std::vector<std::string> lines;                               ///< instructions, without their semicolons
    std::map<std::string, std::size_t> labels;                    ///< the instruction that each stands before
    mutable std::once_flag decoded;
    mutable std::shared_ptr<const Program> program;
  };

  template <class T>
  static Bytes bytes_of(const T& value) {
    Bytes bytes(sizeof value);
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  [[nodiscard]] const Kernel& find(const std::string& kernel) const;
  void run_on_host(const std::string& kernel, Grid grid, const std::vector<Bytes>& arguments) const;
  void run(const Kernel& kernel, Grid grid, const std::vector<Bytes>& arguments,
           const ptx::Memory& memory) const;

  const ptx::Arithmetic arithmetic_;
  std::map<std::string, std::size_t> shared_;  // variables in shared memory and their sizes, of all kernels
  std::map<std::string, Kernel> kernels_;      // by what they are called in C++
};

/// What elements of a dtype are called in the template arguments of a kernel.
[[nodiscard]] std::string cuda_type(DType dtype);

}  // namespace penstock::test
