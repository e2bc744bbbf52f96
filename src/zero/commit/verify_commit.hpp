#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace penstock::zero {

struct VerifiedCommit {
  ByteCount bytes;  ///< that were read
  std::uint64_t tensors = 0;
  std::vector<Error> damaged;  ///< the first error of each tensor that is not what was committed
};

/// Reads every block that `manifests` refer to and verifies it, with `threads` threads. `progress` is called with the
/// bytes so far, by any of them, one at a time. Blocks.
///
/// Errors: no_space, for memory or threads.
[[nodiscard]] Result<VerifiedCommit> verify_commit(tiers::FileSystem& files,
                                                   std::span<const Manifest> manifests, std::uint32_t threads,
                                                   const std::function<void(ByteCount)>& progress);

}  // namespace penstock::zero
