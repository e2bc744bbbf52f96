#include "zero/engine/update_sweep.hpp"

#include "base/abandon.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace penstock::zero {

using swap::HopState;

/// The hop of the move. Between two polls it waits for a lease, for the disk to take tiles, or for a tile's update.
class UpdateSweep::SweepHop final : public swap::Hop {
 public:
  explicit SweepHop(UpdateSweep& sweep)
      : sweep_(sweep), context_(sweep.context_), optimizer_(sweep.optimizer_), step_(sweep.step_) {}

  Result<void> start() override {
    taken_.resize(context_.flats.size());
    sweep_.take_given();
    sweep_.first_waiting_ = 0;
    // What an error has stopped goes first: its leases are held.
    for (std::size_t f = 0; f < context_.flats.size(); ++f) {
      if (context_.flats[f].updated || !has_leases(context_.flats[f])) continue;
      taken_[f] = true;
      next_.push_back(f);
    }
    auto begun = sweep_.device_.begin_sweep();
    if (!begun) sweep_.end_with_error();
    return begun;
  }

  bool is_blocked() const override {
    return std::all_of(sweep_.lanes_.begin(), sweep_.lanes_.end(),
                       [](const auto& lane) { return lane->idle() || lane->waits_for_lease(); });
  }
  TimePoint poll_interval() const override {
    TimePoint interval = forever;
    for (const auto& lane : sweep_.lanes_) interval = std::min(interval, lane->poll_interval());
    return interval;
  }

  Result<HopState> poll() override {
    bool advanced = true;
    while (advanced) {
      sweep_.take_given();
      advanced = poll_lanes();
      if (failure_) return stop();
      const auto further = advance();
      if (!further) {
        note_failure(further.error(), /*in_part=*/false);
        advanced = true;
      } else {
        advanced = advanced || *further;
      }
    }
    return sweep_.end_if_complete() ? HopState::done : HopState::pending;
  }

 private:
  enum class Opening : std::uint8_t { none, gradient, shard };

  /// True if a tile is updated, or will not be.
  bool poll_lanes() {
    bool any = false;
    for (const auto& lane : sweep_.lanes_) {
      if (lane->idle()) continue;
      const auto state = lane->poll(/*stopping=*/failure_.has_value());
      if (state && *state == TileLane::State::busy) continue;
      if (!state) {
        note_failure(state.error(), /*in_part=*/!lane->waits_for_lease());
      } else if (*state == TileLane::State::updated) {
        count_updated(*lane);
      }
      leases_in_use_ = leases_in_use_ || lane->device_may_use_leases();
      lane->end();
      any = true;
    }
    return any;
  }

  void count_updated(const TileLane& lane) {
    std::find_if(open_.begin(), open_.end(), [&](const FlatTiles& tiles) {
      return &tiles.flat() == &lane.flat();
    })->count_updated();
    Updated& updated = sweep_.updated_;
    (lane.processor() == Processor::cpu ? updated.by_cpu : updated.on_device) += lane.tile().range.count;
  }

  /// The update returns the first error, or the first after which it cannot be continued, because a tile may be updated
  /// in part: the other one must not hide it.
  void note_failure(const Error& error, bool in_part) {
    const bool damaged = in_part || error.code() == ErrorCode::corrupted;
    if (!failure_ || (damaged && !context_.update_damaged)) failure_ = error;
    if (damaged) context_.update_damaged = true;
  }

  /// After an error: ends once no tile is being updated. What the move waits for may never come, such as memory of a
  /// tile that the disk refuses.
  Result<HopState> stop() {
    pending_ = {};
    while (poll_lanes()) {
    }
    for (const auto& lane : sweep_.lanes_) {
      if (!lane->idle()) return HopState::pending;
    }
    if (leases_in_use_) abandon_leases();
    sweep_.end_with_error();
    return *failure_;
  }

  /// The leases of the flats, which all lanes use, and the memory of their results.
  void abandon_leases() {
    for (const FlatTiles& tiles : open_) {
      abandon(std::move(tiles.flat().open_shard));
      abandon(std::move(tiles.flat().open_gradient));
    }
    context_.abandon_results();
  }

  Result<bool> advance() {
    if (sweep_.stopping_) {
      return Error(ErrorCode::failed_state, "Engine::~Engine").reason("the engine was destroyed");
    }
    PENSTOCK_TRY(close_flats());
    bool any = begin_tiles();
    PENSTOCK_TRY_ASSIGN(const bool opened, open_flat());
    return any || opened;
  }

  /// Gives each idle lane a tile. True if any got one.
  bool begin_tiles() {
    bool any = false;
    for (const auto& lane : sweep_.lanes_) {
      if (!lane->idle()) continue;
      // More tiles in flight than the disk needs would only evict each other from the CPU's cache.
      const bool waits_for_disk = context_.internals.stores_pending() > optimizer_.options().tile_stores_max;
      for (FlatTiles& tiles : open_) {
        if (begin_tile(*lane, tiles, /*only_kept=*/waits_for_disk)) {
          any = true;
          break;
        }
      }
    }
    return any;
  }

  bool begin_tile(TileLane& lane, FlatTiles& tiles, bool only_kept) {
    TileState* const tile = tiles.next(lane.processor(), only_kept, [this](const TileState& one) {
      return optimizer_.is_at(one, step_.number);
    });
    if (tile == nullptr) return false;
    // The tile first; otherwise the later ones could take its memory.
    if (sweep_.is_read(*tile, context_.internals.memory_is_limited()))
      (void)context_.runtime.prefetch(tile->tensor);
    sweep_.prefetch(
        open_, [this](std::size_t distance) { return flat_to_read(distance); }, step_.updates, 0);
    lane.begin(tiles.flat(), *tile, step_);
    return true;
  }

  /// Ends the flats whose tiles are all updated.
  Result<void> close_flats() {
    for (auto tiles = open_.begin(); tiles != open_.end();) {
      if (!tiles->all_updated()) {
        ++tiles;
        continue;
      }
      FlatState& flat = tiles->flat();
      optimizer_.stamp(flat, step_.number);
      flat.open_gradient.end();
      flat.open_shard.end();
      tiles = open_.erase(tiles);
      PENSTOCK_TRY(context_.discard_gradient(flat));
      end(flat);
    }
    return ok();
  }

  void end(FlatState& flat) {
    flat.updated = true;
    --sweep_.not_updated_;
    context_.wake();  // a gather that waits for it may have been polled before this hop
  }

  /// Leases gradient and shard of the next flat. True if it got further.
  Result<bool> open_flat() {
    switch (opening_) {
      case Opening::none: return begin_flat();
      case Opening::gradient: return take(next_flat().open_gradient, [this] { return request_shard(); });
      case Opening::shard: return take(next_flat().open_shard, [this] { return finish_opening(); });
    }
    return false;
  }

  [[nodiscard]] FlatState& next_flat() const { return context_.flats[next_.front()]; }

  /// Of the flats before number `end` that wait, and whose gradient is reduced, the first; `end` if there is none.
  [[nodiscard]] std::size_t find_waiting(std::size_t end) const {
    std::size_t& first = sweep_.first_waiting_;
    while (first < end && !waits(first)) ++first;
    std::size_t f = first;
    while (f < end && !(waits(f) && is_reduced(f))) ++f;
    return std::min(f, end);
  }

  [[nodiscard]] bool waits(std::size_t flat) const {
    return sweep_.added_[flat] && !context_.flats[flat].updated && !taken_[flat];
  }
  [[nodiscard]] bool is_reduced(std::size_t flat) const {
    return !step_.updates[flat] || context_.flats[flat].grad.reduction.done;
  }

  [[nodiscard]] std::size_t flat_ahead(std::size_t distance) {
    const std::size_t end = context_.flats.size();
    while (next_.size() <= distance) {
      const std::size_t flat = find_waiting(end);
      if (flat == end) return end;
      taken_[flat] = true;
      next_.push_back(flat);
    }
    return next_[distance];
  }

  /// After those whose gradients are there, the flats whose gradients come next: few, because they are guessed.
  [[nodiscard]] std::size_t flat_to_read(std::size_t distance) {
    constexpr std::size_t to_come_max = 8;
    const std::size_t end = context_.flats.size();
    if (flat_ahead(distance) != end) return next_[distance];
    std::size_t left = distance - next_.size();
    if (left >= to_come_max) return end;
    const auto comes = [this](std::size_t f) {
      return step_.updates[f] && (!sweep_.added_[f] || !(context_.flats[f].updated || taken_[f]));
    };
    std::size_t& last = sweep_.to_come_;
    while (last > 0 && !comes(last - 1)) --last;
    for (std::size_t f = last; f > 0; --f) {
      if (comes(f - 1) && left-- == 0) return f - 1;
    }
    return end;
  }

  /// Puts a flat that the forward needs sooner before those whose tiles are read ahead already.
  void prefer_sooner() {
    const std::size_t front = next_.front(), sooner = find_waiting(front);
    if (sooner == front || has_leases(context_.flats[front])) return;
    taken_[sooner] = true;
    next_.push_front(sooner);
  }

  [[nodiscard]] static bool has_leases(const FlatState& flat) {
    return flat.open_gradient.held() || flat.open_shard.held();
  }

  Result<bool> begin_flat() {
    if (open_.size() >= sweep_.plan_.flats || flat_ahead(0) == context_.flats.size()) return false;
    prefer_sooner();
    FlatState& flat = next_flat();
    flat.grad.in_place.end();
    if (step_.updates[next_.front()]) {
      PENSTOCK_TRY(check_gradient(flat));
    } else {
      optimizer_.advance(flat, step_.number);
    }
    if (optimizer_.tiles_before(flat, step_.number) == 0) {
      next_.pop_front();
      end(flat);
      return true;
    }
    // The leases are kept after an error, so that the part already written is not lost.
    if (flat.open_shard.held()) return finish_opening();
    if (!is_begun(flat)) PENSTOCK_TRY(optimizer_.check_same_step(flat));
    if (!flat.kept_gradient.empty()) return request_shard();
    request(flat.gradient, swap::Access::read);
    opening_ = Opening::gradient;
    return true;
  }

  /// The gradient was reduced, and is one that updates: nothing has judged it before where the update begins within
  /// the backward.
  Result<void> check_gradient(const FlatState& flat) {
    if (flat.grad.reduction.error) return *flat.grad.reduction.error;
    if (!step_.check_gradient) return ok();
    auto usable = step_.check_gradient(flat);
    if (!usable) context_.update_damaged = true;  // other tiles are of this step
    return usable;
  }

  void request(tiers::TensorId tensor, swap::Access access) {
    pending_ = context_.internals.request_for_mover(tensor, access, swap::Use::recorded);
  }

  /// Takes the lease that was requested, then calls `next`.
  template <class Next>
  Result<bool> take(swap::Lease& lease, const Next& next) {
    auto answer = pending_.poll();
    if (!answer) return false;
    PENSTOCK_TRY_ASSIGN(lease, *std::move(answer));
    return next();
  }

  /// Whether an update that an error has stopped has begun the flat, whose shard is kept on the device.
  [[nodiscard]] bool is_begun(const FlatState& flat) const {
    return !flat.kept_shard.empty() &&
           std::any_of(flat.tiles.begin(), flat.tiles.end(),
                       [this](const TileState& tile) { return optimizer_.is_at(tile, step_.number); });
  }

  Result<bool> request_shard() {
    if (!next_flat().kept_shard.empty()) return finish_opening();
    // Where the parameter is a part of the master it is read too.
    const bool reads = optimizer_.reads_parameters();
    request(next_flat().shard, reads ? swap::Access::modify : swap::Access::overwrite);
    const std::size_t after = reads ? flat_ahead(1) : context_.flats.size();
    if (after < context_.flats.size() && step_.updates[after])
      (void)context_.runtime.prefetch(context_.flats[after].shard);
    opening_ = Opening::shard;
    return true;
  }

  Result<bool> finish_opening() {
    open_.emplace_back(next_flat(), sweep_.plan_.split, optimizer_.tiles_before(next_flat(), step_.number));
    next_.pop_front();
    opening_ = Opening::none;
    return true;
  }

  UpdateSweep& sweep_;
  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  const OffloadedOptimizer::Step& step_;
  std::deque<FlatTiles> open_;    // whose leases are held, in order
  std::deque<std::size_t> next_;  // flats that follow them; the first one may be being opened
  std::vector<bool> taken_;       // by flat: it is one of these
  Opening opening_ = Opening::none;
  swap::PendingLease pending_;
  std::optional<Error> failure_;
  bool leases_in_use_ = false;  // by the device, perhaps for ever
};

Result<void> UpdateSweep::open() {
  if (context_.internals.has_threads()) {
    PENSTOCK_TRY_ASSIGN(thread_, parallel::TaskThread::create("penstock-update"));
  }
  Executor& executor = thread_ ? *thread_ : context_.internals.executor();
  const auto add_lane = [&](DeviceUpdate* device, std::size_t slot) {
    lanes_.push_back(std::make_unique<TileLane>(context_, optimizer_, executor, device, slot));
  };
  for (const FlatState& flat : context_.flats) {
    tiles_on_disk_ =
        tiles_on_disk_ || std::any_of(flat.tiles.begin(), flat.tiles.end(),
                                      [](const auto& tile) { return tile.place == TilePlace::disk; });
  }
  if (plan_.by_cpu) add_lane(nullptr, 0);
  for (std::uint32_t slot = 0; slot < plan_.device_slots; ++slot) add_lane(&device_, slot);
  return ok();
}

TimePoint UpdateSweep::busy() const {
  TimePoint longest{};
  for (const auto& lane : lanes_) longest = std::max(longest, lane->busy());
  return longest;
}

void UpdateSweep::begin(OffloadedOptimizer::Step step) {
  step_ = std::move(step);
  step_.updates = flats_to_update();
  last_ = std::exchange(updated_, {});
  began_ = Clock::steady().now();
  begun_ = true;
  for (FlatState& flat : context_.flats) flat.grad.is_of_update = false;
  added_.assign(context_.flats.size(), false);
  not_updated_ = 0;
  first_waiting_ = to_come_ = context_.flats.size();
}

void UpdateSweep::add(std::span<const std::uint32_t> flats) {
  bool starts = false;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t f : flats) {
      FlatState& flat = context_.flats[f];
      if (flat.layout->frozen || std::exchange(flat.grad.is_of_update, true)) continue;
      flat.updated = false;
      given_.push_back(f);
    }
    starts = !std::exchange(runs_, true);
  }
  if (starts) return start();
  context_.wake();
}

void UpdateSweep::take_given() {
  const std::lock_guard lock(mutex_);
  for (const std::uint32_t f : given_) {
    added_[f] = true;
    ++not_updated_;
    first_waiting_ = std::min<std::size_t>(first_waiting_, f);
  }
  given_.clear();
}

bool UpdateSweep::end_if_complete() {
  const std::lock_guard lock(mutex_);
  if (not_updated_ > 0 || !given_.empty()) return false;
  runs_ = false;
  return true;
}

void UpdateSweep::add_others() {
  std::vector<std::uint32_t> all(context_.flats.size());
  std::iota(all.begin(), all.end(), 0u);
  add(all);
}

std::vector<bool> UpdateSweep::flats_to_update() const {
  std::vector<bool> updates;
  for (const FlatState& flat : context_.flats) updates.push_back(!flat.grad.absent);
  return updates;
}

bool UpdateSweep::is_read(const TileState& tile, bool limited) const {
  if (tile.place != TilePlace::home) return tile.place == TilePlace::disk;
  return limited && !context_.runtime.in_memory(tile.tensor);
}

void UpdateSweep::prefetch(const std::deque<FlatTiles>& open, const FlatsAhead& ahead,
                           const std::vector<bool>& updates, std::uint32_t more) const {
  const bool limited = context_.internals.memory_is_limited();
  if (!limited && !tiles_on_disk_) return;
  std::uint32_t count = 0;
  const auto prefetch_tiles = [&](const FlatTiles& tiles, std::uint32_t limit) {
    const std::vector<TileState>& all = tiles.flat().tiles;
    for (std::size_t i = tiles.first_not_begun(0); i < all.size() && count < limit;
         i = tiles.first_not_begun(i + 1)) {
      if (!is_read(all[i], limited)) continue;
      (void)context_.runtime.prefetch(all[i].tensor);
      ++count;
    }
  };
  for (const FlatTiles& tiles : open) prefetch_tiles(tiles, optimizer_.options().tiles_ahead + more);
  const std::uint32_t limit = optimizer_.options().tiles_ahead_next_flats + more;
  for (std::size_t distance = 0; count < limit; ++distance) {
    const std::size_t flat = ahead(distance);
    if (flat == context_.flats.size()) return;
    if (updates[flat]) prefetch_tiles(FlatTiles(context_.flats[flat], plan_.split), limit);
  }
}

void UpdateSweep::read_ahead() {
  if (std::exchange(has_read_ahead_, true)) return;
  const std::vector<bool> updates = flats_to_update();
  std::vector<std::size_t> order;
  for (std::size_t flat = 0; flat < updates.size(); ++flat)
    if (updates[flat]) order.push_back(flat);
  if (order.empty()) return;
  // Within the backward, the flats whose gradients are there first.
  if (context_.config.penstock.update_in_backward) std::reverse(order.begin(), order.end());
  const auto after = [&](std::size_t distance) {
    return distance + 1 < order.size() ? order[distance + 1] : updates.size();
  };
  // The first tiles are to be begun at once, by all lanes.
  prefetch({FlatTiles(context_.flats[order.front()], plan_.split)}, after, updates, plan_.host_tiles());
}

void UpdateSweep::end_with_error() {
  const std::lock_guard lock(mutex_);
  runs_ = false;
}

void UpdateSweep::resume() {
  if (!context_.update_stopped) return;
  context_.update_stopped = false;
  {
    const std::lock_guard lock(mutex_);
    runs_ = true;
  }
  start();
}

void UpdateSweep::stop() {
  stopping_ = true;
  context_.wake();
}

void UpdateSweep::start() {
  // The last move has ended, or reports its end now.
  bool has_failed = false;
  context_.internals.wait_ignoring_stores([&] {
    has_failed = context_.update.error || context_.update_stopped;
    return context_.update.done;
  });
  if (has_failed) return end_with_error();  // resume() starts the next one
  context_.update = MoveProgress::begun();
  swap::Move move;
  move.then(std::make_unique<SweepHop>(*this));
  move.on_event = [this](HopState state, const Result<void>& result) {
    context_.update.report(state, result);
    updated_.duration = Clock::steady().now() - began_;
  };
  context_.internals.start(std::move(move));
}

}  // namespace penstock::zero
