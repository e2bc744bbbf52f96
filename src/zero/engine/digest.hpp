#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <string>

namespace penstock::zero {

/// XXH3-128 of all master weights, over all ranks, in hexadecimal. Blocks. Errors: those of reading the masters;
/// the engine has failed, when a peer has.
[[nodiscard]] Result<std::string> compute_digest(EngineContext& context, OffloadedOptimizer& optimizer);

}  // namespace penstock::zero
