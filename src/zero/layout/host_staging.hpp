#pragma once

#include "zero/layout/padded.hpp"

#include <penstock/base/units.hpp>
#include <penstock/swap/runtime_options.hpp>

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>

namespace penstock::zero {

/// The largest tensor of each kind that is moved through host memory; zero for a kind that stays there.
struct StreamedSizes {
  ByteCount tile, shard, gradient;
  ByteCount incoming;  ///< of a reduced gradient, before it is added to the accumulator
  ByteCount checkpoint = {};
  ByteCount
      leases;  ///< of all shards that are leased as gathered flats: each with its lease_gap(); not the largest
  bool in_backward = false;  ///< gradients are accumulated during an update: penstock.update_in_backward
};

/// The host memory that a lease of a gathered flat may make unusable, beside its own bytes.
inline ByteCount lease_gap(const StreamedSizes& largest) {
  return std::max({largest.tile, largest.shard, largest.gradient, largest.incoming, largest.checkpoint});
}

/// The leases that an engine holds while it waits for the room of another tensor, and the largest such tensor:
///
/// - the update holds the shards and gradients of the flats that it updates, and waits for a tile, or a gather waits
///   for a shard meanwhile; an update of two flats has waited for the second gradient beside the leases of the first
///   flat;
/// - accumulation holds the incoming gradient and waits for the accumulator, or the reverse; a gather waits for a shard
///   while accumulation holds one of the two.
///
/// A checkpoint may be waited for in all of these cases too; what holds one waits for nothing else. All other leases
/// end without waiting for memory, of this rank or of a peer: a gather's ends with its copy, before the collective.
/// Nothing is accumulated during an update, unless it begins in the backward: then the leases of both add up.
using HeldCases = std::array<swap::HeldLeases, 3>;
inline HeldCases held_cases(const StreamedSizes& largest, std::uint32_t flats = 1) {
  const auto& [tile, shard, gradient, incoming, checkpoint, leases, in_backward] = largest;
  swap::HeldLeases update{(shard + gradient) * flats, 2 * flats, std::max({tile, shard, checkpoint})};
  if (in_backward) {
    update.bytes += std::max(gradient, incoming);
    update.count += 1;
    update.waits_for = lease_gap(largest);
  }
  if (flats > 1) {
    return {update,
            {shard + gradient, 2, std::max({gradient, incoming, checkpoint})},
            {incoming, 1, std::max(gradient, checkpoint)}};
  }
  return {
      update, {incoming, 1, std::max(gradient, checkpoint)}, {gradient, 1, std::max(incoming, checkpoint)}};
}

/// Where `held` are anywhere, the bytes with which the range that is waited for is certain to fit.
inline ByteCount room_beside(const swap::HeldLeases& held) {
  return held.bytes + held.waits_for * (held.count + 1);
}

/// The one of the held_cases() that needs the most.
inline swap::HeldLeases largest_case(const StreamedSizes& largest) {
  return std::ranges::max(held_cases(largest), {}, room_beside);
}

/// The host memory that guarantees progress of one engine.
///
/// A range may be allocated anywhere, so that k leases can leave k + 1 gaps. One more range of size s is certain to
/// fit only if s × (k + 1) bytes are free beside the leases. Shards that are leased as gathered flats (a rank that is
/// alone, on host memory) may be held in all cases. Each of them takes its bytes and leaves one more gap, into which
/// the largest range that is waited for may not fit: lease_gap().
///
/// Example: tiles of 3 MiB, shards of 4 MiB, gradients of 8 MiB, incoming gradients of 4 MiB. The update holds shard
/// and gradient (12 MiB), which leave 3 gaps: 12 + 3 × 4 = 24 MiB, which is the maximum. Accumulation needs
/// 4 + 2 × 8 = 20 MiB.
inline ByteCount host_staging(const StreamedSizes& largest) {
  return largest.leases + room_beside(largest_case(largest));
}

/// The same for engines that share the memory.
///
/// Requests get room in the order of their arrival. While the first one waits, those of the other engines wait behind
/// it, and each engine keeps what it holds in one of its held_cases(): their leases add up, and so do the gaps that
/// they leave. For each case of each engine, with s the largest range that it waits for, k its leases and k' those of
/// the other engines: all these leases, and s × (k + k' + 1). A lease in place leaves a gap of s too, of which its
/// own engine's budget has lease_gap().
///
/// The tensors that engines keep in memory leave no gaps: all engines add them, from one end of the memory, before the
/// first engine gets values.
///
/// Example: two engines as above: 12 + 12 MiB are held, which leave 5 gaps: 24 + 5 × 4 = 44 MiB; while one
/// accumulates and waits for 8 MiB, the other one updates: 4 + 12 + 4 × 8 = 48 MiB, which is the maximum.
inline ByteCount host_staging(std::span<const swap::RuntimeUse> engines) {
  const auto in_place = [](const swap::RuntimeUse& engine, ByteCount waits_for) {
    if (engine.in_place.is_zero() || waits_for <= engine.in_place_gap) return engine.in_place;
    // A lease takes at least one unit of allocation.
    const std::uint64_t count = engine.in_place / (engine.in_place_gap + ByteCount(extent_alignment.bytes()));
    return engine.in_place + (waits_for - engine.in_place_gap) * count;
  };
  const auto beside = [&](const swap::RuntimeUse& other, ByteCount waits_for) {
    ByteCount most;
    for (const swap::HeldLeases& held : other.held)
      most = std::max(most, held.bytes + waits_for * held.count);
    return in_place(other, waits_for) + most;
  };
  ByteCount most;
  for (const swap::RuntimeUse& engine : engines) {
    for (const auto& [bytes, count, waits_for] : engine.held) {
      ByteCount need = in_place(engine, waits_for) + bytes + waits_for * (count + 1);
      for (const swap::RuntimeUse& other : engines) {
        if (&other != &engine) need += beside(other, waits_for);
      }
      most = std::max(most, need);
    }
  }
  return most;
}

/// The host memory for all of `engines`: their budgets, and what host_staging() needs beyond the staging in them.
inline ByteCount host_memory(std::span<const swap::RuntimeUse> engines) {
  ByteCount budgets, staging;
  for (const swap::RuntimeUse& engine : engines) {
    budgets += engine.host;
    staging += engine.staging;
  }
  if (engines.size() < 2) return budgets;  // plan_memory() has checked the budget of one
  return budgets + (std::max(staging, host_staging(engines)) - staging);
}

/// The least for what moves with which engines that share the memory make progress.
inline ByteCount staging_least(std::span<const swap::RuntimeUse> engines) {
  return engines.size() == 1 ? engines.front().staging_least : host_staging(engines);
}

/// Maximum number of tiles in memory: those prefetched, being updated, and being written. An update ends with as many
/// more being written as it has updated at a time; meanwhile the next step reads ahead, for the start of its update, as
/// many more. Example: 4 in flight and 1 being updated need 2 × (4 + 1) = 10.
constexpr std::uint64_t tile_ring(std::uint32_t tiles_in_flight, std::uint32_t updating) {
  return 2 * (std::uint64_t{tiles_in_flight} + updating);
}

}  // namespace penstock::zero
