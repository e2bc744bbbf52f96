#pragma once

#include "zero/layout/tiles.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <memory>
#include <optional>
#include <set>
#include <vector>

namespace penstock::zero {

/// One optimizer tile: where it is, and the step it stands at.
struct TileState {
  tiers::TensorId tensor{};
  TileRange range;
  std::uint64_t first_element = 0;  ///< its number among all of the model's: flat × 2^40 + place in the flat
  bool on_disk = false;
};

/// Everything one rank knows of one flat. The trainer's thread owns it, but for `gather` and `landing`,
/// which the mover sets under the coordinator's mutex.
struct FlatState {
  const FlatLayout* layout = nullptr;
  tiers::TensorId shard{}, gradient{}, landing_tensor{};
  std::vector<TileState> tiles;

  /// Progress of a move, as the trainer's thread sees it.
  struct Progress {
    bool ordered = false;  ///< the stream's event can be waited for
    bool done = true;      ///< nothing is in flight
    std::optional<Error> error;
  };

  // The gathered flat.
  DeviceTensor gathered;
  bool waited_for = false;  ///< the compute stream has waited for it
  Progress gather;
  std::unique_ptr<tiers::Event> copied, gathered_event;

  // The full gradient.
  DeviceTensor full;
  std::set<ParameterId> written;
  std::uint32_t landed = 0;  ///< micro-batches reduced since the last step
  Progress landing;
  std::unique_ptr<tiers::Event> grad_ready, reduced, landed_event;
  std::vector<double> square_partials;  ///< of the accumulated gradient, after the last micro-batch

  // Held over a step() that failed half-way, so that the next one goes on.
  swap::Lease open_shard, open_gradient;
};

}  // namespace penstock::zero
