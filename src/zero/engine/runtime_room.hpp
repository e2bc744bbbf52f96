#pragma once

#include <penstock/swap/runtime.hpp>

#include <span>

namespace penstock::zero {

/// Checks that `runtime` has room for the last of `engines` beside the others. Returns the least host memory
/// beside what stays there with which all of them make progress.
///
/// Errors: already_exists, for its number; budget_too_small and no_space, with what is missing.
[[nodiscard]] Result<ByteCount> check_room(swap::Runtime& runtime, std::span<const swap::RuntimeUse> engines);

}  // namespace penstock::zero
