#pragma once

#include <penstock/base/result.hpp>

#include <cstdint>
#include <functional>

namespace gpt {

/// Calls run(rank) for each of `ranks` ranks on a thread of its own and waits for all of them.
///
/// Errors: no_space, where the threads cannot be started: then run() was not called at all, because ranks wait for each
/// other.
[[nodiscard]] penstock::Result<void> run_ranks(std::uint32_t ranks,
                                               const std::function<void(std::uint32_t)>& run);

}  // namespace gpt
