#pragma once

#include "sample.hpp"

#include <penstock/base/result.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::bench {

/// One setting of fio.
struct FioVariant {
  std::string engine;  ///< value of fio's --ioengine
  ByteCount request_size;
  std::uint32_t depth = 0;
  /// Buffers on 2 MiB pages and aligned to them, as ours are; GLIBC_TUNABLES makes malloc use such pages. Without
  /// it buffers are on 4 KiB pages and the device gets each request in four parts.
  bool huge_pages = true;

  /// "fio io_uring 4 MiB x 4".
  [[nodiscard]] std::string name() const;
};

/// Settings with the request sizes and depths that are best on one disk or another, and one setting with fio's
/// default buffers.
[[nodiscard]] std::span<const FioVariant> fio_variants();

/// Runs fio for `seconds` over `files`, one job a file. `operation` is a value of fio's --rw: read, write or rw.
///
/// Blocks. Errors: unsupported where fio does not run; io, when it reports a failure.
[[nodiscard]] Result<Sample> run_fio(const FioVariant& variant, const char* operation,
                                     std::span<const std::string> files, ByteCount file_size, bool direct,
                                     double seconds);

/// "fio-3.33"; an error where it is not installed.
[[nodiscard]] Result<std::string> fio_version();

}  // namespace penstock::bench
