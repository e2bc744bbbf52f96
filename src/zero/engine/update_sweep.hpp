#pragma once

#include "parallel/task_thread.hpp"
#include "zero/engine/device_update.hpp"
#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/engine/tile_lane.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::zero {

/// The update of a step's parameters, beside the trainer: a move that updates tiles, in the order in which the next
/// forward needs the parameters, by the CPU with all its workers, on the device, or both. EngineContext::update has its
/// progress, FlatState::updated that of each flat.
///
/// An error stops the update once no tile is being updated. resume() continues with the first tile that is not updated:
/// each tile's step is recorded.
///
/// Used by the trainer's thread.
class UpdateSweep {
 public:
  /// `device` has a slot for each that the plan names.
  UpdateSweep(EngineContext& context, OffloadedOptimizer& optimizer, DeviceUpdate& device,
              const MemoryPlan::Update& plan)
      : context_(context), optimizer_(optimizer), device_(device), plan_(plan) {}

  /// Starts the thread that updates tiles. With an idle handler the runtime's executor does.
  ///
  /// Errors: no_space, where the thread cannot be started.
  Result<void> open();
  /// Starts to update the flats that have a gradient. Precondition: the last update is complete, no flat is gathered,
  /// and no gradient is being accumulated.
  void begin(OffloadedOptimizer::Step step);
  /// Starts to read the first tiles of the step's update, for which no gradient is needed, unless they are in memory.
  /// Repeated calls do nothing until end_step(). Precondition: the last update is complete.
  void read_ahead();
  /// The step has ended with an update or without one: read_ahead() is for the next step.
  void end_step() { has_read_ahead_ = false; }
  /// Continues an update that an error has stopped, once EngineContext::check_update() has returned that error.
  void resume();
  /// How long the last update took, from begin() to its end. Call when none runs.
  [[nodiscard]] TimePoint duration() const { return duration_; }
  /// How long updates have worked on tiles, without waits for them: the lane that has worked longest. Safe from any
  /// thread, after open().
  [[nodiscard]] TimePoint busy() const;
  /// How many elements the last update has updated. Call when none runs.
  struct Updated {
    ElementCount by_cpu, on_device;
  };
  [[nodiscard]] const Updated& updated() const { return updated_; }
  /// Ends the update before its next tile, for the engine's destructor: also while it waits for a lease.
  /// EngineContext::update then becomes done.
  void stop();

 private:
  class SweepHop;
  class FlatTiles;

  void start();
  /// By flat: whether it has a gradient in the step in progress.
  [[nodiscard]] std::vector<bool> flats_to_update() const;
  /// The first flat from number `flat` on that `updates` names; their number if there is none.
  [[nodiscard]] std::size_t next_updated(std::size_t flat, const std::vector<bool>& updates) const;
  /// Whether the tile is to be read from disk before its update, as far as is known now: one at home may be, while the
  /// memory is limited. Safe from any thread.
  [[nodiscard]] bool is_read(const TileState& tile, bool limited) const;
  /// Prefetches tiles of `open` that have not begun, then those of the flats from number `next` on: as many as the plan
  /// allows ahead of those that have begun, and `more`. Safe from any thread.
  void prefetch(const std::deque<FlatTiles>& open, std::size_t next, const std::vector<bool>& updates,
                std::uint32_t more) const;

  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  DeviceUpdate& device_;
  const MemoryPlan::Update& plan_;
  std::unique_ptr<parallel::TaskThread> thread_;
  std::vector<std::unique_ptr<TileLane>> lanes_;
  OffloadedOptimizer::Step step_;
  TimePoint began_{0}, duration_{0};
  Updated updated_;
  bool has_read_ahead_ = false;
  bool tiles_on_disk_ = false;  // some have no home in memory
  std::atomic<bool> stopping_{false};
};

}  // namespace penstock::zero
