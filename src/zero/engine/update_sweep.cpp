#include "zero/engine/update_sweep.hpp"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

namespace penstock::zero {

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
  order_.begin(flats_with_gradient());
  last_ = std::exchange(updated_, {});
  began_ = Clock::steady().now();
  begun_ = true;
  for (FlatState& flat : context_.flats) flat.grad.is_of_update = false;
}

void UpdateSweep::add(std::span<const std::uint32_t> flats) {
  bool starts = false;
  {
    const std::lock_guard lock(mutex_);
    for (const std::uint32_t f : flats) {
      FlatState& flat = context_.flats[f];
      if (flat.layout->frozen || std::exchange(flat.grad.is_of_update, true)) continue;
      flat.is_written = !flat.grad.absent;
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
  for (const std::uint32_t f : given_) order_.add(f);
  given_.clear();
}

bool UpdateSweep::end_if_complete() {
  const std::lock_guard lock(mutex_);
  if (!order_.complete() || !given_.empty()) return false;
  runs_ = false;
  return true;
}

void UpdateSweep::add_others() {
  std::vector<std::uint32_t> all(context_.flats.size());
  std::iota(all.begin(), all.end(), 0u);
  add(all);
}

std::vector<bool> UpdateSweep::flats_with_gradient() const {
  std::vector<bool> has_gradient;
  for (const FlatState& flat : context_.flats) has_gradient.push_back(!flat.grad.absent);
  return has_gradient;
}

bool UpdateSweep::is_read(const TileState& tile, bool limited) const {
  if (tile.place != TilePlace::home) return tile.place == TilePlace::disk;
  return limited && !context_.runtime.in_memory(tile.tensor);
}

void UpdateSweep::ask_for(const TileState& tile) const {
  // Beside a backward tiles are used at other points of each step, so that the trace does not know when.
  (void)(context_.config.penstock.update_in_backward ? context_.internals.prefetch_next(tile.tensor)
                                                     : context_.runtime.prefetch(tile.tensor));
}

void UpdateSweep::prefetch(const std::deque<FlatTiles>& open, const NextFlat& next, AheadMax most) const {
  const bool limited = context_.internals.memory_is_limited();
  if (!limited && !tiles_on_disk_) return;
  std::uint32_t count = 0;
  const auto prefetch_tiles = [&](const FlatTiles& tiles, std::uint32_t limit) {
    const std::vector<TileState>& all = tiles.flat().tiles;
    for (std::size_t i = tiles.first_not_begun(0); i < all.size() && count < limit;
         i = tiles.first_not_begun(i + 1)) {
      if (!is_read(all[i], limited)) continue;
      ask_for(all[i]);
      ++count;
    }
  };
  for (const FlatTiles& tiles : open) prefetch_tiles(tiles, most.of_open);
  while (count < most.of_next) {
    const auto flat = next();
    if (!flat) return;
    prefetch_tiles(FlatTiles(context_.flats[*flat], plan_.split), most.of_next);
  }
}

void UpdateSweep::read_between() {
  may_read_between_ = false;
  if (!context_.internals.memory_is_limited()) prefetch_first({plan_.tiles_between, plan_.tiles_between});
}

void UpdateSweep::read_ahead() {
  if (std::exchange(has_read_ahead_, true)) return;
  // All lanes begin at once.
  const auto [of_open, of_next] = ahead_max();
  prefetch_first({of_open + plan_.host_tiles(), of_next + plan_.host_tiles()});
}

void UpdateSweep::prefetch_first(AheadMax most) const {
  const std::vector<bool> has_gradient = flats_with_gradient();
  std::deque<std::size_t> order;
  for (std::size_t flat = 0; flat < has_gradient.size(); ++flat) {
    if (has_gradient[flat]) order.push_back(flat);
  }
  // Within the backward, the flats whose gradients are there first.
  if (context_.config.penstock.update_in_backward) std::reverse(order.begin(), order.end());
  const NextFlat next = [&order]() -> std::optional<std::size_t> {
    if (order.empty()) return std::nullopt;
    const std::size_t flat = order.front();
    order.pop_front();
    return flat;
  };
  if (const auto first = next()) prefetch({FlatTiles(context_.flats[*first], plan_.split)}, next, most);
}

void UpdateSweep::resume() {
  if (!context_.update_stopped || context_.update_ended || context_.failure) return;
  context_.update_stopped = false;
  start();
}

void UpdateSweep::stop() {
  stopping_ = true;
  context_.wake();
}

void UpdateSweep::start() {
  // The last move has ended, or reports its end now.
  context_.internals.wait_ignoring_stores([this] { return context_.update.done; });
  context_.update = MoveProgress::begun();
  swap::Move move;
  move.then(make_hop());
  move.on_event = [this](swap::HopState state, const Result<void>& result) {
    context_.update.report(state, result);
    updated_.duration = Clock::steady().now() - began_;
  };
  context_.internals.start(std::move(move));
}

}  // namespace penstock::zero
