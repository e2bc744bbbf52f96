#pragma once

#include <penstock/base/units.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/tier.hpp>

#include <span>
#include <vector>

namespace gpt {

/// What was planned to be held in one tier for one purpose, and what a run has held at most.
struct TierBytes {
  penstock::tiers::Tier tier{};
  penstock::tiers::Purpose purpose{};
  penstock::ByteCount predicted, actual;
  /// Of host staging, which is the memory that the run has allocated beside all else: how much of it was in use.
  penstock::ByteCount used;
};

/// Of ranks, by tier and purpose; without what is neither planned nor held.
[[nodiscard]] std::vector<TierBytes> tier_bytes(std::span<penstock::swap::Runtime* const> ranks);

}  // namespace gpt
