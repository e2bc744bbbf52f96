#pragma once

#include "sample.hpp"

#include <penstock/base/result.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::bench {

/// One way of running fio.
struct FioVariant {
  std::string engine;  ///< fio's word
  ByteCount request_size;
  std::uint32_t depth = 0;
  /// Buffers on 2 MiB pages, as ours are: malloc is told by GLIBC_TUNABLES, and they start on such a page.
  /// Without it they are on 4 KiB pages, and the device sees requests cut in four.
  bool huge_pages = true;

  /// "fio io_uring 4 MiB x 4".
  [[nodiscard]] std::string name() const;
};

/// Fair settings over the sizes and depths that serve one disk or another best, and what fio does when nobody
/// tells it about pages.
[[nodiscard]] std::span<const FioVariant> fio_variants();

/// Runs fio for `seconds` over `files`, one job a file, `operation` being fio's own word (read, write, rw).
///
/// Blocks. Errors: unsupported where fio does not run; io, when it reports a failure.
[[nodiscard]] Result<Sample> run_fio(const FioVariant& variant, const char* operation,
                                     std::span<const std::string> files, ByteCount file_size, bool direct,
                                     double seconds);

/// "fio-3.33"; an error where it is not installed.
[[nodiscard]] Result<std::string> fio_version();

}  // namespace penstock::bench
