#pragma once

#include "swap/simulate/replay.hpp"

namespace penstock::swap {

// What Replay::create() refuses.

/// Whether the rates can be: finite, and above 0 where something is divided by them. Errors: invalid_argument, which
/// names the rate.
[[nodiscard]] Result<void> check_costs(const ReplayCosts& costs);
/// What a replay needs of host memory. The trainer holds one tensor at a time, the update those of a flat and one of
/// its tiles.
struct BudgetNeed {
  BudgetNeed(const AccessTrace& trace, const StepUses& uses, Alignment alignment);
  ByteCount staying;   // of tensors that stay in memory
  ByteCount largest;   // of the others
  ByteCount together;  // of these, that are held at a time by the trainer or by the update
  const AccessTrace::Tensor* last = nullptr;  // of `together`, the one that comes last

  [[nodiscard]] ByteCount least() const { return staying + together; }
  /// With this there is a gap for each use, whatever trainer and update hold, and wherever that lies.
  [[nodiscard]] ByteCount enough() const;
};
/// Errors: budget_too_small, for less than the least, with what needs it.
[[nodiscard]] Result<void> check_budget(const BudgetNeed& need, ByteCount budget);

}  // namespace penstock::swap
