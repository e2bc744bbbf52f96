#pragma once

#include "zero/commit/manifest.hpp"

#include <penstock/base/result.hpp>
#include <penstock/base/span.hpp>
#include <penstock/tiers/io/file_system.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace penstock::zero {

/// Verified bytes of a committed tensor.
struct CommittedWindow {
  std::size_t manifest, tensor;  ///< indices: of the manifest, and of the tensor in it
  ByteCount begin;               ///< of the first byte, in the tensor
  HostSpan bytes;
  HostSpan padded;  ///< the same with what follows in the file, to a multiple of extent_alignment
};

/// Reads and verifies every block that `manifests` refer to, with `threads` threads, and calls `visit` with each window
/// of at most 32 blocks, on any of them, several at a time. A tensor that is damaged, or of which `visit` returns an
/// error, is not continued. Returns the first error of each such tensor. Blocks.
///
/// Errors: no_space, for memory or threads.
[[nodiscard]] Result<std::vector<Error>> read_commit(
    tiers::FileSystem& files, std::span<const Manifest> manifests, std::uint32_t threads,
    const std::function<Result<void>(const CommittedWindow&)>& visit);

}  // namespace penstock::zero
