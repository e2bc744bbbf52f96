#pragma once

#include "swap/simulate/replay.hpp"

namespace penstock::swap {

// What Replay::create() refuses.

/// Whether the rates can be: finite, and above 0 where something is divided by them. Errors: invalid_argument, which
/// names the rate.
[[nodiscard]] Result<void> check_costs(const ReplayCosts& costs);
/// Whether the tensors that stay in memory have room, with one of the others, and with those that the update holds at a
/// time. Errors: budget_too_small, with the least budget and what needs it.
[[nodiscard]] Result<void> check_budget(const AccessTrace& trace, const StepUses& uses, ByteCount budget,
                                        Alignment alignment);

}  // namespace penstock::swap
