#pragma once

#include "swap/transfer/transfer_engine.hpp"
#include "tiers/device/event_pool.hpp"
#include "zero/layout/engine_tensors.hpp"
#include "zero/layout/tiles.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include "zero/layout/shard_layout.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace penstock::zero {

/// One optimizer tile: a tensor, or a range of the device's memory.
struct TileState {
  const FlatLayout* flat = nullptr;
  std::uint32_t number = 0;  ///< in the flat
  tiers::TensorId tensor{};
  DeviceSpan kept;              ///< on the device; empty if the tile is a tensor
  std::uint64_t kept_step = 0;  ///< the step of what is kept there
  TileRange range;
  std::uint64_t first_element =
      0;  ///< its number among all elements of the model: flat × 2^40 + position in the flat
  TilePlace place = TilePlace::memory;
  bool updated_on_device = false;  ///< MemoryPlan::updated_on_device()

  [[nodiscard]] std::string name() const { return tile_name(*flat, number); }
};

/// Progress of a move for the trainer's thread. The mover sets it under the runtime's lock.
struct MoveProgress {
  bool ordered = false;  ///< streams can wait for the move's event
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
  swap::Lease
      in_place;  ///< of the shard, if it is the gathered flat; set by the mover before the gather is done
  bool waited_for = false;  ///< the compute stream has waited for it
  /// After the work of the last lease of each stream, by its native handle: objects that wrap streams come and go.
  std::map<const void*, tiers::Fence> last_uses;
  MoveProgress gather;
  std::unique_ptr<tiers::Event> gathered;
};

/// A flat's full gradient, and the reduction of this rank's slice to the accumulator.
struct GradientFlat {
  DeviceTensor full;
  swap::Lease in_place;  ///< of the gradient shard, if it is the full gradient
  /// From the step's update until the next gradient is opened: the mover ends that lease, once the update reads it.
  bool is_of_update = false;
  bool absent = false;  ///< the flat is frozen, or gets none in this step
  std::set<ParameterId> written;
  std::uint32_t closed_count = 0;  ///< micro-batches of this step whose gradient is complete
  MoveProgress reduction;
  std::unique_ptr<tiers::Event> written_event, reduced;
  /// Of one that several units write, perhaps on several streams: after what they have done so far.
  std::vector<tiers::Fence> written_by;
  tiers::Fence
      copied_out;  ///< set before the reduction is ordered: after it the full gradient may be written again
  std::vector<double> square_partials;  ///< of the accumulated gradient, after the last micro-batch
  HostSpan partials;                    ///< to which those are copied that the device computes
};

/// The state of one flat on one rank. Owned by the trainer's thread, except MoveProgress and what the update uses.
struct FlatState {
  const FlatLayout* layout = nullptr;
  tiers::TensorId shard{}, gradient{}, incoming_gradient{};
  bool shard_on_disk = false;
  bool shard_at_home = false;            ///< on disk, and host memory is its home
  DeviceSpan kept_shard, kept_gradient;  ///< on the device, instead of these tensors; empty if there are none
  std::uint64_t kept_step = 0;           ///< the step of kept_shard
  std::vector<TileState> tiles;
  GatheredFlat gathered;
  GradientFlat grad;
  /// The parameters are those of the last step. The trainer's thread sets it to false before a gather must wait for the
  /// update, the mover to true.
  std::atomic<bool> updated = true;
  /// The update that sets `updated` writes the shard, as there is a gradient. Set by the trainer's thread when it sets
  /// `updated` to false.
  bool is_written = false;

  // Of the update; kept if it stops in the middle of the flat, so that it can continue.
  swap::Lease open_shard, open_gradient;
};

}  // namespace penstock::zero
