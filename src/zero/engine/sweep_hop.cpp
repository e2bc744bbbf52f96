#include "zero/engine/update_sweep.hpp"

#include "base/abandon.hpp"

#include <algorithm>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <utility>

namespace penstock::zero {

using swap::HopState;

/// The hop of an update's move: opens and closes flats, and gives their tiles to lanes. Between two polls it waits for
/// a lease, for the disk to take tiles, or for a tile's update.
class UpdateSweep::SweepHop final : public swap::Hop {
 public:
  explicit SweepHop(UpdateSweep& sweep)
      : sweep_(sweep),
        context_(sweep.context_),
        optimizer_(sweep.optimizer_),
        step_(sweep.step_),
        order_(sweep.order_) {}

  Result<void> start() override {
    sweep_.take_given();
    // What an error has stopped goes first: its leases are held.
    order_.restart([this](std::size_t flat) { return has_leases(context_.flats[flat]); });
    return sweep_.device_.begin_sweep();
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
        note_failure(further.error(), /*ends_it=*/false);
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
        note_failure(state.error(), /*ends_it=*/!lane->waits_for_lease());
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

  /// The update returns the first error, or the first after which it cannot be continued: the other one must not hide
  /// it. `ends_it`: a tile may be updated in part, or a gradient is lost.
  void note_failure(const Error& error, bool ends_it) {
    ends_it = ends_it || error.code() == ErrorCode::corrupted;
    if (!failure_ || (ends_it && !context_.update_ended)) failure_ = error;
    if (ends_it) context_.update_ended = true;
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
    if (sweep_.is_read(*tile, context_.internals.memory_is_limited())) sweep_.ask_for(*tile);
    sweep_.prefetch(
        open_, [this, distance = std::size_t{0}]() mutable { return flat_to_read(distance); },
        sweep_.ahead_max());
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
    order_.end(static_cast<std::size_t>(&flat - context_.flats.data()));
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

  [[nodiscard]] FlatState& next_flat() { return context_.flats[*order_.ahead(0)]; }

  /// The first flat with a gradient, from `distance` on, of those whose tiles are read next; `distance` becomes that of
  /// the one after it.
  [[nodiscard]] std::optional<std::size_t> flat_to_read(std::size_t& distance) {
    while (const auto flat = order_.to_read(distance++)) {
      if (order_.has_gradient(*flat)) return flat;
    }
    return std::nullopt;
  }

  [[nodiscard]] static bool has_leases(const FlatState& flat) {
    return flat.open_gradient.held() || flat.open_shard.held();
  }

  Result<bool> begin_flat() {
    if (open_.size() >= sweep_.plan_.flats || !order_.ahead(0)) return false;
    order_.keep_first();
    FlatState& flat = next_flat();
    flat.grad.in_place.end();
    if (order_.has_gradient(*order_.ahead(0))) {
      PENSTOCK_TRY(check_gradient(flat));
    } else {
      optimizer_.advance(flat, step_.number);
    }
    if (optimizer_.tiles_before(flat, step_.number) == 0) {
      order_.take_first();
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
    Result<void> usable = ok();
    if (flat.grad.reduction.error) {
      usable = *flat.grad.reduction.error;
    } else if (step_.check_gradient) {
      usable = step_.check_gradient(flat);
    }
    if (!usable) note_failure(usable.error(), /*ends_it=*/true);
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
    const auto after = reads ? order_.ahead(1) : std::nullopt;
    if (after && order_.has_gradient(*after)) (void)context_.runtime.prefetch(context_.flats[*after].shard);
    opening_ = Opening::shard;
    return true;
  }

  Result<bool> finish_opening() {
    open_.emplace_back(next_flat(), sweep_.plan_.split, optimizer_.tiles_before(next_flat(), step_.number));
    order_.take_first();
    opening_ = Opening::none;
    return true;
  }

  UpdateSweep& sweep_;
  EngineContext& context_;
  OffloadedOptimizer& optimizer_;
  const OffloadedOptimizer::Step& step_;
  UpdateOrder& order_;
  std::deque<FlatTiles> open_;       // whose leases are held, in order
  Opening opening_ = Opening::none;  // the first flat of the order
  swap::PendingLease pending_;
  std::optional<Error> failure_;
  bool leases_in_use_ = false;  // by the device, perhaps for ever
};

std::unique_ptr<swap::Hop> UpdateSweep::make_hop() {
  return std::make_unique<SweepHop>(*this);
}

}  // namespace penstock::zero
