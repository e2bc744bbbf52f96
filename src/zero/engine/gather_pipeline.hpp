#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/layout/flat_residency.hpp"

#include <vector>

namespace penstock::zero {

/// Gathers the parameters of units before they are used: starts a move for each flat that residency wants gathered,
/// and hands out views once the unit's stream waits for them.
///
/// Used by the trainer's thread.
class GatherPipeline {
 public:
  explicit GatherPipeline(EngineContext& context)
      : context_(context), unit_streams_(context.model.units.size()) {}

  /// Starts filling the range that residency has given the flat. What FlatResidency::Effects asks for.
  Result<void> gather(FlatState& flat, const tiers::Reservation& range);
  /// Waits until only what is enqueued uses the range of the gathered flat.
  Result<void> finish_use(FlatState& flat);

  /// Has `stream` wait for the unit's flats, and returns views of its parameters: its own, then shared ones. Blocks
  /// until every gather is ordered on a stream.
  Result<std::vector<DeviceTensor>> views(std::uint32_t unit, tiers::Stream& stream);
  /// The lease of views() ends: from here on, in the order of its stream, the ranges may be written.
  Result<void> end_use(std::uint32_t unit);
  /// Nothing of this pipeline is in flight. With the runtime's lock held.
  [[nodiscard]] bool idle() const;

 private:
  Result<void> wait_for_gather(FlatState& flat);

  EngineContext& context_;
  std::vector<tiers::Stream*> unit_streams_;
};

}  // namespace penstock::zero
