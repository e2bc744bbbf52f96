#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/layout/update_slot.hpp"

#include <penstock/cpu_adam/device_adam.hpp>

#include <cstdint>
#include <memory>
#include <vector>

namespace penstock::zero {

/// The device's part of an update: slots of its memory through which tiles pass. A tile is copied in, updated by a
/// kernel on a stream of its own, and copied out; the transfers of one slot run beside the kernel of another.
///
/// Used by the mover; open() by the trainer's thread.
class DeviceUpdate {
 public:
  DeviceUpdate(EngineContext& context, cpu_adam::DeviceAdam* adam) : context_(context), adam_(adam) {}

  /// Divides `memory` into the plan's slots, each for any tile of the engine, which exist. `results` is host memory of
  /// UpdateSlot::result bytes for each slot, `piece` of a HostPiece. They stay mapped as long as the device may use
  /// them.
  ///
  /// Errors: those of the device.
  Result<void> open(const MemoryPlan& plan, DeviceSpan memory, HostSpan results, HostSpan piece);

  /// Orders the kernels of an update after the last copies of kept shards. Errors: those of the device.
  Result<void> begin_sweep();

  /// The slots, for Engine::unpark(), which moves them.
  [[nodiscard]] std::vector<DeviceSpan>& slots() { return slots_; }

  /// Copies what is kept on the device to host memory, or the reverse. Block; used by the trainer's thread while no
  /// update runs. Errors: those of the device, which fail the engine if they come from waiting.
  Result<void> read(DeviceSpan kept, HostSpan to);
  Result<void> write(ConstHostSpan from, DeviceSpan kept);
  /// Host memory for these copies, of HostPiece::elements elements.
  [[nodiscard]] HostSpan state_piece() const { return piece_.subspan({}, piece_places_.parameter); }
  [[nodiscard]] HostSpan parameter_piece() const {
    return piece_.subspan(piece_places_.parameter, piece_.size() - piece_places_.parameter);
  }
  [[nodiscard]] ElementCount piece_elements() const { return piece_places_.elements; }

  /// Updates one tile in a slot.
  class TileHop : public swap::Hop {
   public:
    /// Whether the device may still use the leases of the tile, its shard and its gradient, for ever.
    [[nodiscard]] virtual bool may_use_leases() const = 0;
  };
  /// Copies the tile, and its parts of its flat's open gradient and open shard, to slot number `slot`, updates it, and
  /// copies state and parameters back. What is kept on the device is not copied. Once the hop has ended, the leases are
  /// not used any more unless may_use_leases().
  ///
  /// Errors of the hop: those of the device, and deadline_exceeded; the tile may be updated in part then. non_finite,
  /// naming the tile.
  [[nodiscard]] std::unique_ptr<TileHop> make_hop(std::size_t slot, const OffloadedOptimizer& optimizer,
                                                  const FlatState& flat, const TileState& tile,
                                                  HostSpan state, const OffloadedOptimizer::Step& step);

 private:
  class Hop;

  EngineContext& context_;
  cpu_adam::DeviceAdam* const adam_;
  UpdateSlot places_;
  std::vector<DeviceSpan> slots_;
  HostSpan results_;
  HostPiece piece_places_{.elements = HostPiece::elements_max, .parameter = {}, .size = {}};
  HostSpan piece_;
};

}  // namespace penstock::zero
