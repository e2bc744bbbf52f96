#include "zero/engine/update_sweep.hpp"

#include <utility>

namespace penstock::zero {

using swap::HopState;

/// The hop of the move. Between two polls it waits for a lease, for the disk to take tiles, or for a worker.
class UpdateSweep::TileHop final : public swap::Hop {
 public:
  explicit TileHop(UpdateSweep& sweep)
      : sweep_(sweep),
        context_(sweep.context_),
        optimizer_(sweep.optimizer_),
        step_(sweep.step_),
        stopping_(sweep.stopping_),
        executor_(sweep.executor()) {}

  Result<void> start() override { return ok(); }
  bool is_blocked() const override { return phase_ != Phase::work; }

  Result<HopState> poll() override {
    while (true) {
      PENSTOCK_TRY_ASSIGN(const Progress progress, advance());
      if (progress == Progress::waits) return HopState::pending;
      if (progress == Progress::over) return HopState::done;
    }
  }

 private:
  enum class Phase : std::uint8_t { flat, gradient, shard, tile, state, work };
  enum class Progress : std::uint8_t { goes_on, waits, over };

  [[nodiscard]] FlatState& flat() const { return context_.flats[flat_]; }
  [[nodiscard]] TileState& tile() const { return flat().tiles[tile_]; }

  Result<Progress> advance() {
    switch (phase_) {
      case Phase::flat: return begin_flat();
      case Phase::gradient: return take(flat().open_gradient, [this] { return request_shard(); });
      case Phase::shard: return take(flat().open_shard, [this] { return begin_tiles(); });
      case Phase::tile: return begin_tile();
      case Phase::state: return take(state_, [this] { return begin_work(); });
      case Phase::work: return finish_work();
    }
    return Progress::over;
  }

  Progress go_to(Phase phase) {
    phase_ = phase;
    return Progress::goes_on;
  }

  /// What the move waits for may never come: memory of a tile that the disk refuses.
  [[nodiscard]] Result<void> check_stopping() const {
    if (!stopping_) return ok();
    return Error(ErrorCode::failed_state, "Engine::~Engine").reason("the engine was destroyed");
  }

  void request(tiers::TensorId tensor, swap::Access access, swap::Use use) {
    pending_ = context_.internals.request_for_mover(tensor, access, use);
  }

  /// Takes the lease that was requested, then calls `next`.
  template <class Next>
  Result<Progress> take(swap::Lease& lease, const Next& next) {
    auto answer = pending_.poll();
    if (!answer) {
      PENSTOCK_TRY(check_stopping());
      return Progress::waits;
    }
    PENSTOCK_TRY_ASSIGN(lease, *std::move(answer));
    return next();
  }

  Result<Progress> begin_flat() {
    if (flat_ == context_.flats.size()) return Progress::over;
    if (!step_.updates[flat_]) optimizer_.advance(flat(), step_.number);
    if (flat().updated || optimizer_.is_at(flat(), step_.number)) return end_flat();
    // The leases are kept after an error, so that the part already written is not lost.
    if (flat().open_shard.held()) return begin_tiles();
    PENSTOCK_TRY(optimizer_.check_same_step(flat()));
    request(flat().gradient, swap::Access::read, swap::Use::recorded);
    return go_to(Phase::gradient);
  }

  Result<Progress> request_shard() {
    // Where the parameter is a part of the master it is read too. Otherwise the use is not recorded, because an
    // overwrite needs no prefetch.
    const bool reads = optimizer_.reads_parameters();
    request(flat().shard, reads ? swap::Access::modify : swap::Access::overwrite,
            reads ? swap::Use::recorded : swap::Use::unrecorded);
    const std::size_t next = sweep_.next_updated(flat_ + 1, step_.updates);
    if (reads && next < context_.flats.size()) (void)context_.runtime.prefetch(context_.flats[next].shard);
    return go_to(Phase::shard);
  }

  Result<Progress> begin_tiles() {
    tile_ = 0;
    return go_to(Phase::tile);
  }

  Result<Progress> begin_tile() {
    while (tile_ < flat().tiles.size() && optimizer_.is_at(tile(), step_.number)) ++tile_;
    if (tile_ == flat().tiles.size()) {
      context_.internals.blocks(flat().shard).stamp(step_.number);
      flat().open_gradient.end();
      flat().open_shard.end();
      PENSTOCK_TRY(context_.runtime.discard(flat().gradient));
      return end_flat();
    }
    PENSTOCK_TRY(check_stopping());
    // More tiles in flight than the disk needs would only evict each other from the CPU's cache.
    if (context_.internals.stores_pending() > optimizer_.options().tile_stores_max) return Progress::waits;
    sweep_.prefetch(flat_, tile_, step_.updates);
    request(tile().tensor, swap::Access::modify,
            tile().on_disk ? swap::Use::recorded : swap::Use::unrecorded);
    return go_to(Phase::state);
  }

  Result<Progress> begin_work() {
    work_ = swap::make_work_hop(executor_, context_.wake, [this] {
      return optimizer_.update_tile(flat(), tile(), state_.bytes(), step_);
    });
    PENSTOCK_TRY(work_->start());
    return go_to(Phase::work);
  }

  Result<Progress> finish_work() {
    auto state = work_->poll();
    if (state && *state == HopState::pending) return Progress::waits;
    work_.reset();
    state_.end();
    if (!state) return state.error();
    return go_to(Phase::tile);
  }

  Result<Progress> end_flat() {
    flat().updated = true;
    context_.wake();  // a gather that waits for it may have been polled before this hop
    ++flat_;
    return go_to(Phase::flat);
  }

  const UpdateSweep& sweep_;
  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  const OffloadedOptimizer::Step& step_;
  const std::atomic<bool>& stopping_;
  Executor& executor_;
  Phase phase_ = Phase::flat;
  std::size_t flat_ = 0, tile_ = 0;
  swap::PendingLease pending_;
  swap::Lease state_;
  std::unique_ptr<swap::Hop> work_;
};

Result<void> UpdateSweep::open() {
  if (!context_.internals.has_threads()) return ok();
  PENSTOCK_TRY_ASSIGN(thread_, parallel::TaskThread::create("penstock-update"));
  return ok();
}

Executor& UpdateSweep::executor() const {
  return thread_ ? *thread_ : context_.internals.executor();
}

void UpdateSweep::begin(OffloadedOptimizer::Step step) {
  step_ = std::move(step);
  step_.updates = flats_to_update();
  has_read_ahead_ = false;
  began_ = Clock::steady().now();
  for (FlatState& flat : context_.flats) flat.updated = false;
  start();
}

std::vector<bool> UpdateSweep::flats_to_update() const {
  std::vector<bool> updates;
  for (const FlatState& flat : context_.flats) updates.push_back(!flat.grad.absent);
  return updates;
}

std::size_t UpdateSweep::next_updated(std::size_t flat, const std::vector<bool>& updates) const {
  while (flat < updates.size() && !updates[flat]) ++flat;
  return flat;
}

/// The first tile first; otherwise the later ones could take its memory.
void UpdateSweep::prefetch(std::size_t flat, std::size_t tile, const std::vector<bool>& updates) const {
  const auto prefetch_tile = [this](const TileState& one) {
    if (one.on_disk) (void)context_.runtime.prefetch(one.tensor);
    return one.on_disk;
  };
  prefetch_tile(context_.flats[flat].tiles[tile]);
  std::uint32_t ahead = 0, limit = optimizer_.options().tiles_ahead;
  while (ahead < limit) {
    if (++tile == context_.flats[flat].tiles.size()) {
      flat = next_updated(flat + 1, updates);
      if (flat == context_.flats.size()) return;
      tile = 0;
      limit = optimizer_.options().tiles_ahead_next_flats;
      if (ahead >= limit) return;
    }
    if (prefetch_tile(context_.flats[flat].tiles[tile])) ++ahead;
  }
}

void UpdateSweep::read_ahead() {
  if (std::exchange(has_read_ahead_, true)) return;
  const std::vector<bool> updates = flats_to_update();
  const std::size_t first = next_updated(0, updates);
  if (first < updates.size()) prefetch(first, 0, updates);
}

void UpdateSweep::resume() {
  if (!context_.update_stopped) return;
  context_.update_stopped = false;
  start();
}

void UpdateSweep::stop() {
  stopping_ = true;
  context_.wake();
}

void UpdateSweep::start() {
  context_.update = MoveProgress::begun();
  swap::Move move;
  move.then(std::make_unique<TileHop>(*this));
  move.on_event = [this](HopState state, const Result<void>& result) {
    context_.update.report(state, result);
    duration_ = Clock::steady().now() - began_;
  };
  context_.internals.start(std::move(move));
}

}  // namespace penstock::zero
