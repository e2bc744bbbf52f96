#pragma once

#include "zero/estimate/plan_estimate.hpp"

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::estimate {

/// Where one kind of what a rank keeps between uses is, in bytes by tier.
struct PlacedBytes {
  std::string_view kind;
  std::array<ByteCount, tiers::tier_count> in = {};

  [[nodiscard]] ByteCount total() const;
  /// The part that is in the tier, from 0 to 1.
  [[nodiscard]] double share(tiers::Tier tier) const;
};
/// Parameters, gradients, optimizer states and activation checkpoints, without those that the rank does not have.
[[nodiscard]] std::vector<PlacedBytes> placement_of(const MemoryPlan& plan);

/// Another setting, planned, and what it takes.
struct Knob {
  std::string change;
  Config config;         ///< with the change
  ByteCount host, nvme;  ///< of a node
  ByteCount device;      ///< of a rank
  ByteCount moved;       ///< over the drives of a node in a step, at most
};
/// Settings that move fewer bytes over the drives than `estimate`, which is of `config`: other state formats, and more
/// in host memory or in the device's. The one that moves least is the first. None where the drives move nothing.
[[nodiscard]] std::vector<Knob> next_knobs(const Config& config, const ModelLayout& layout,
                                           const PlanEstimate& estimate);

/// Seconds that the drives of a node take for what a step moves, at the rates of path_limits; 0: not known.
[[nodiscard]] double drive_seconds(const Config& config, const PlanEstimate& estimate);

}  // namespace penstock::zero::estimate
