#pragma once

#include <penstock/base/result.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::bench {

/// One way of running fio.
struct FioVariant {
  std::string name;
  ByteCount request_size;
  std::uint32_t depth = 0;
  /// Buffers on 2 MiB pages, as ours are: malloc is told by GLIBC_TUNABLES, and they start on such a page.
  /// Without it they are on 4 KiB pages, and the device sees requests cut in four.
  bool huge_pages = true;
};

/// What we measure of it and of ourselves alike.
struct Sample {
  double gb_per_second = 0;    ///< 1 GB is 1e9 bytes
  double cpu_s_per_gb = 0;     ///< user and system, of the whole process
  double driver_s_per_gb = 0;  ///< of our driver threads alone; 0 for fio
  std::uint64_t requests = 0;
};

/// Runs fio for `seconds` over `files`, one job a file, `operation` being fio's own word (read, write, rw).
///
/// Blocks. Errors: unsupported where fio does not run; io, when it reports a failure.
[[nodiscard]] Result<Sample> run_fio(const FioVariant& variant, const char* operation,
                                     std::span<const std::string> files, ByteCount file_size, bool direct,
                                     double seconds);

/// "fio-3.33"; an error where it is not installed.
[[nodiscard]] Result<std::string> fio_version();

/// The command that run_fio() gives to the shell.
[[nodiscard]] std::string fio_command(const FioVariant& variant, const char* operation,
                                      std::span<const std::string> files, ByteCount file_size, bool direct,
                                      double seconds);

}  // namespace penstock::bench
