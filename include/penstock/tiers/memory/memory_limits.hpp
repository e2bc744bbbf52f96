#pragma once

#include <penstock/base/result.hpp>
#include <penstock/base/units.hpp>

#include <algorithm>
#include <filesystem>
#include <string>

namespace penstock::tiers {

/// What limits the host memory of this process most.
struct MemoryLimit {
  ByteCount available;  ///< can still be allocated
  ByteCount allowed;    ///< what `file` allows all processes together; the machine's memory for /proc/meminfo
  std::string file;     ///< sets the limit: /proc/meminfo, its commit limit, or a file of a control group

  [[nodiscard]] ByteCount used() const { return allowed - std::min(allowed, available); }
};

/// The smallest of the machine's available memory (MemAvailable, or free memory and page cache where the kernel does
/// not report that), the rest of its commit limit where the kernel enforces that, and the rest of the limits of this
/// process's memory control group and of all groups above it, version 1 and 2: of memory.max and memory.high the lower
/// one. Page cache that the kernel can drop is not used up. A limit that cannot be read or is not a number counts as
/// none. Reads the files below `root`, which a test may replace. Blocks.
///
/// Beyond the machine's memory an allocation fails or pages are swapped; beyond the limit of a control group the kernel
/// ends a process with SIGKILL when it uses the memory, without an error before; beyond memory.high it throttles the
/// process, so that populating some GiB takes hours.
[[nodiscard]] MemoryLimit memory_limit(const std::filesystem::path& root = "/");

/// Call before memory is allocated. Errors: no_space, which names the limit's file and says how much is missing.
[[nodiscard]] Result<void> check_memory(const char* operation, ByteCount wanted, const MemoryLimit& limit);

}  // namespace penstock::tiers
