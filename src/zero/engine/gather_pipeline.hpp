#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/layout/flat_residency.hpp"

#include <vector>

namespace penstock::zero {

/// Gathers the parameters of units before they are used: starts a move for each flat that FlatResidency decides to
/// gather, and returns views after it has made the unit's stream wait for them.
///
/// Used by the trainer's thread.
class GatherPipeline {
 public:
  explicit GatherPipeline(EngineContext& context) : context_(context) {}

  /// Forgets the gathers of an abandoned step. Precondition: none is in flight.
  void abandon_step();
  /// Starts to gather the flat into the range that FlatResidency has assigned; in place, starts to lease the shard,
  /// which is the flat. Implements FlatResidency::Effects.
  Result<void> gather(FlatState& flat, const tiers::Reservation& range);
  /// Releases the range of the gathered flat: the next user waits for the flat's last use. In place, waits until no
  /// work uses the shard, and ends the lease.
  Result<void> finish_use(FlatState& flat, const tiers::Reservation& range);

  /// Makes `stream` wait for the unit's flats, and returns views of the unit's parameters: its own, then shared ones.
  /// Blocks until every gather is ordered on a stream.
  Result<std::vector<DeviceTensor>> views(std::uint32_t unit, tiers::Stream& stream);
  /// Ends a use of views(): after this point of its stream the ranges may be written.
  Result<void> end_use(std::uint32_t unit, tiers::Stream& stream);
  /// Whether the streams have passed the last uses of a flat that was gathered in place. Does not block.
  [[nodiscard]] static bool has_ended(const GatheredFlat& flat);
  /// Whether no gather is in flight. Call with the runtime's lock held.
  [[nodiscard]] bool idle() const;

 private:
  Result<void> end_lease(FlatState& flat);
  [[nodiscard]] swap::PendingLease pending_lease_of(const FlatState& flat);
  Result<void> wait_for_gather(FlatState& flat);

  EngineContext& context_;
};

}  // namespace penstock::zero
