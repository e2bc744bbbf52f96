#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <string>

namespace penstock::zero {

/// XXH3-128 of the master weights of all ranks, in hexadecimal. Blocks. Errors: those of reading the masters; if a peer
/// fails, the engine fails too.
[[nodiscard]] Result<std::string> compute_digest(EngineContext& context, OffloadedOptimizer& optimizer);

}  // namespace penstock::zero
