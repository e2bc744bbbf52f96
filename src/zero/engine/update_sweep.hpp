#pragma once

#include "parallel/task_thread.hpp"
#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <atomic>
#include <memory>

namespace penstock::zero {

/// The update of a step's parameters, beside the trainer: a move that leases one tile after the other, in the order in
/// which the next forward needs the parameters, and updates each with all workers. EngineContext::update has its
/// progress, FlatState::updated that of each flat.
///
/// An error stops the update between two tiles. resume() continues with the first tile that is not updated: each tile's
/// step is recorded.
///
/// Used by the trainer's thread.
class UpdateSweep {
 public:
  UpdateSweep(EngineContext& context, OffloadedOptimizer& optimizer)
      : context_(context), optimizer_(optimizer) {}

  /// Starts the thread that updates tiles. With an idle handler the runtime's executor does.
  ///
  /// Errors: no_space, where the thread cannot be started.
  Result<void> open();
  /// Starts to update the flats that have a gradient. Precondition: the last update is complete, no flat is gathered,
  /// and no gradient is being accumulated.
  void begin(OffloadedOptimizer::Step step);
  /// Starts to read the first tiles of the next update, for which no gradient is needed. Repeated calls do nothing
  /// until begin(). Precondition: the last update is complete.
  void read_ahead();
  /// Continues an update that an error has stopped, once EngineContext::check_update() has returned that error.
  void resume();
  /// How long the last update took, from begin() to its end. Call when none runs.
  [[nodiscard]] TimePoint duration() const { return duration_; }
  /// Ends the update before its next tile, for the engine's destructor: also while it waits for a lease.
  /// EngineContext::update then becomes done.
  void stop();

 private:
  class TileHop;

  void start();
  /// By flat: whether it has a gradient in the step in progress.
  [[nodiscard]] std::vector<bool> flats_to_update() const;
  /// The first flat from number `flat` on that `updates` names; their number if there is none.
  [[nodiscard]] std::size_t next_updated(std::size_t flat, const std::vector<bool>& updates) const;
  /// Prefetches tile number `tile` of flat number `flat`, and the next ones as far as the plan allows. Safe from any
  /// thread.
  void prefetch(std::size_t flat, std::size_t tile, const std::vector<bool>& updates) const;
  [[nodiscard]] Executor& executor() const;

  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  OffloadedOptimizer::Step step_;
  TimePoint began_{0}, duration_{0};
  bool has_read_ahead_ = false;
  std::atomic<bool> stopping_{false};
  std::unique_ptr<parallel::TaskThread> thread_;
};

}  // namespace penstock::zero
