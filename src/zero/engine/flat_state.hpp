#pragma once

#include "swap/transfer/transfer_engine.hpp"
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

/// Progress of a move, as the trainer's thread sees it. The mover sets it under the runtime's lock.
struct MoveProgress {
  bool ordered = false;  ///< the stream's event can be waited for
  bool done = true;      ///< nothing is in flight
  std::optional<Error> error;

  [[nodiscard]] static MoveProgress begun() { return {.ordered = false, .done = false, .error = {}}; }
  void report(swap::HopState state, const Result<void>& result) {
    ordered = true;
    if (state == swap::HopState::done) done = true;
    if (!result) error = result.error();
  }
};

/// A flat's gathered parameters.
struct GatheredFlat {
  DeviceTensor parameters;
  bool waited_for = false;  ///< the compute stream has waited for it
  MoveProgress gather;
  std::unique_ptr<tiers::Event> copied, gathered;
};

/// A flat's full gradient, and this rank's slice of it on its way to the accumulator.
struct GradientFlat {
  DeviceTensor full;
  std::set<ParameterId> written;
  std::uint32_t reduced_count = 0;  ///< micro-batches reduced since the last step
  MoveProgress reduction;
  std::unique_ptr<tiers::Event> written_event, reduced, copied_out;
  std::vector<double> square_partials;  ///< of the accumulated gradient, after the last micro-batch
};

/// Everything one rank knows of one flat. The trainer's thread owns it but for what MoveProgress says.
struct FlatState {
  const FlatLayout* layout = nullptr;
  tiers::TensorId shard{}, gradient{}, incoming_gradient{};
  std::vector<TileState> tiles;
  GatheredFlat gathered;
  GradientFlat grad;

  // Held over a step() that failed half-way, so that the next one goes on.
  swap::Lease open_shard, open_gradient;
};

}  // namespace penstock::zero
