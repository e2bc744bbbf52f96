#pragma once

#include "zero/layout/flat_residency.hpp"

namespace penstock::zero {

/// Makes the decisions of steps without moving bytes: units acquired in unit_order(), each lease ended before the next
/// acquire, for every number of micro-batches up to the one after which decisions repeat, and at least
/// `micro_batches`. `budget` is that of the device: what is used in place is not limited.
///
/// Errors: budget_too_small.
[[nodiscard]] Result<void> rehearse_steps(const ShardLayout& shards, DType dtype, InPlace in_place,
                                          const ResidencyLimits& limits, std::uint32_t micro_batches,
                                          ByteCount budget);

/// The same for leases of shards that are used in place, in a budget of host memory.
[[nodiscard]] Result<void> rehearse_leases(const ShardLayout& shards, DType dtype, InPlace in_place,
                                           const ResidencyLimits& limits, ByteCount budget);

/// The most that is held at a time, on the device.
struct FlatPeaks {
  ByteCount gathered, gradients;
};
/// The peaks of a run whose steps have `micro_batches`, in budgets in which rehearse_steps() and rehearse_leases()
/// succeed. Errors: budget_too_small.
[[nodiscard]] Result<FlatPeaks> rehearse_peaks(const ShardLayout& shards, DType dtype, InPlace in_place,
                                               const ResidencyLimits& limits, std::uint32_t micro_batches,
                                               ByteCount budget, ByteCount leases);

}  // namespace penstock::zero
