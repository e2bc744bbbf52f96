#pragma once

#include "parallel/task_thread.hpp"
#include "zero/engine/device_update.hpp"
#include "zero/engine/engine_context.hpp"
#include "zero/engine/flat_tiles.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/engine/tile_lane.hpp"
#include "zero/engine/update_order.hpp"

#include <penstock/zero/layout/memory_plan.hpp>

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

namespace penstock::zero {

/// The update of a step's parameters, beside the trainer: a move that updates tiles, by the CPU with all its workers,
/// on the device, or both. EngineContext::update has its progress, FlatState::updated that of each flat. Of the flats
/// that were added and whose gradient is reduced, it takes the one next that the next forward needs first.
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
  /// Begins the update of the step in progress, of no flat yet. Precondition: the last update is complete.
  void begin(OffloadedOptimizer::Step step);
  /// Adds flats, whose last gradient of the step is reduced or being reduced, and starts to update each one then. A
  /// gather that follows waits for it. Precondition: begin(); no lease of the shard is held.
  void add(std::span<const std::uint32_t> flats);
  /// Adds all flats that were not added. Precondition: begin(); no flat is gathered, and no gradient is being
  /// accumulated.
  void add_others();
  /// Whether an update of the step in progress has begun.
  [[nodiscard]] bool has_begun() const { return begun_; }
  /// A step has begun: the next read_between() reads.
  void begin_step() { may_read_between_ = true; }
  [[nodiscard]] bool may_read_between() const { return may_read_between_; }
  /// Before the step's first gradient, starts to read as many of its update's first tiles as the plan allows between
  /// two updates. Once in a step. Precondition: the last update is complete.
  void read_between();
  /// The same at the first gradient: as many as are to be read ahead. Repeated calls do nothing until end_step().
  void read_ahead();
  /// The step has ended with an update or without one: what follows is of the next step.
  void end_step() { has_read_ahead_ = begun_ = may_read_between_ = false; }
  /// Continues an update that an error has stopped, once EngineContext::check_update() has returned that error.
  void resume();
  /// How long updates have worked on tiles, without waits for them: the lane that has worked longest. Safe from any
  /// thread, after open().
  [[nodiscard]] TimePoint busy() const;
  struct Updated {
    TimePoint duration{0};             ///< from begin() to the end of the update
    ElementCount by_cpu, on_device{};  ///< elements
  };
  /// The last update before that of the step in progress. Call when that one is complete.
  [[nodiscard]] const Updated& last() const { return begun_ ? last_ : updated_; }
  /// Ends the update before its next tile, for the engine's destructor: also while it waits for a lease.
  /// EngineContext::update then becomes done.
  void stop();

 private:
  class SweepHop;

  [[nodiscard]] std::unique_ptr<swap::Hop> make_hop();
  void start();
  /// Of the mover: what add() has given waits for its update.
  void take_given();
  /// Of the mover: whether nothing is left to be done, so that the move ends. add() then starts another one.
  [[nodiscard]] bool end_if_complete();
  /// By flat: whether it has a gradient in the step in progress.
  [[nodiscard]] std::vector<bool> flats_with_gradient() const;
  /// Whether the tile is to be read from disk before its update, as far as is known now: one at home may be, while the
  /// memory is limited. Safe from any thread.
  [[nodiscard]] bool is_read(const TileState& tile, bool limited) const;
  /// Has the tile read, which a lane begins soon. Safe from any thread.
  void ask_for(const TileState& tile) const;
  /// The next flat whose tiles are updated, if it is known.
  using NextFlat = std::function<std::optional<std::size_t>()>;
  /// Maximum number of tiles: while all are of flats that are being updated, and once some are of later ones.
  struct AheadMax {
    std::uint32_t of_open = 0, of_next = 0;
  };
  [[nodiscard]] AheadMax ahead_max() const {
    return {optimizer_.options().tiles_ahead, optimizer_.options().tiles_ahead_next_flats};
  }
  /// Prefetches tiles of `open` that have not begun, then those of the flats that follow. Safe from any thread.
  void prefetch(const std::deque<FlatTiles>& open, const NextFlat& next, AheadMax most) const;
  /// The first tiles of the step's update, for which no gradient is needed.
  void prefetch_first(AheadMax most) const;

  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  DeviceUpdate& device_;
  const MemoryPlan::Update& plan_;
  std::unique_ptr<parallel::TaskThread> thread_;
  std::vector<std::unique_ptr<TileLane>> lanes_;
  OffloadedOptimizer::Step step_;
  TimePoint began_{0};
  Updated updated_, last_;
  bool begun_ = false, has_read_ahead_ = false, may_read_between_ = false;
  std::mutex mutex_;
  std::vector<std::uint32_t> given_;  // with mutex_: flats for the mover
  bool runs_ = false;  // with mutex_: a move will take them, also if an error has stopped this one
  // Of the mover while a move runs; otherwise of the trainer's thread.
  UpdateOrder order_{[this](std::size_t flat) { return context_.flats[flat].grad.reduction.done; }};
  bool tiles_on_disk_ = false;  // some have no home in memory; set by open()
  std::atomic<bool> stopping_{false};
};

}  // namespace penstock::zero
