#pragma once

#include "zero/layout/reduction_queue.hpp"
#include "zero/layout/residency_limits.hpp"
#include "zero/layout/shard_layout.hpp"

#include <penstock/base/dtype.hpp>
#include <penstock/base/units.hpp>

#include <vector>

namespace penstock::zero {

/// Room on the device for units.
struct UnitNeeds {
  ByteCount gathered;   ///< the two largest neighbouring units
  ByteCount gradients;  ///< the full gradients of the largest unit
  /// The full gradient of a flat of several units, which stays from the first to the last of them in a backward pass.
  ByteCount shared_gradients;
  ByteCount all_flats, all_gradients;  ///< of all units; without lease gaps
};

/// By flat: whether it persists, see ResidencyLimits::param_persistence.
[[nodiscard]] std::vector<bool> persistent_flats(const ShardLayout& shards, const ResidencyLimits& limits);
[[nodiscard]] ByteCount persistent_bytes(const ShardLayout& shards, DType dtype,
                                         const ResidencyLimits& limits);

/// How many of them full gradients need: where reductions overlap, one is written and one is reduced.
[[nodiscard]] constexpr std::uint64_t gradient_rounds(const ResidencyLimits& limits) {
  return limits.overlap ? 2 : 1;
}

/// `lease_gap` is added for each gathered flat.
[[nodiscard]] UnitNeeds unit_needs(const ShardLayout& shards, DType dtype, ByteCount lease_gap);

/// What full gradients are to hold of a device's budget.
struct GradientShare {
  ByteCount held;
  ReductionQueue::Size bucket_max;
};

/// A bucket and what is written meanwhile fit into the share, so that a reduction is waited for only where one flat
/// needs its memory. `with_gathered`: the budget is that of gathered flats too.
[[nodiscard]] GradientShare gradient_share(const ShardLayout& shards, DType dtype,
                                           const ResidencyLimits& limits, ByteCount budget,
                                           bool with_gathered);

}  // namespace penstock::zero
