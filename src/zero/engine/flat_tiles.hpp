#pragma once

#include "zero/engine/flat_state.hpp"
#include "zero/engine/tile_lane.hpp"

#include <array>
#include <cstddef>
#include <cstdint>

namespace penstock::zero {

/// The tiles of one flat, and which of them an update has begun.
class FlatTiles {
 public:
  /// `left`: tiles that are to be updated.
  FlatTiles(FlatState& flat, UpdateSplit split, std::size_t left = 0)
      : flat_(&flat), split_(split), left_(left) {}

  [[nodiscard]] FlatState& flat() const { return *flat_; }
  /// The first tile from number `from` on that has not begun; their number if there is none.
  [[nodiscard]] std::size_t first_not_begun(std::size_t from) const {
    while (from < flat_->tiles.size() && begun(from)) ++from;
    return from;
  }
  /// The next tile for the processor, which then has begun; null if there is none. Skips those for which `skips(tile)`,
  /// and with `only_kept` those that are not kept on the device.
  template <class Skips>
  [[nodiscard]] TileState* next(Processor processor, bool only_kept, const Skips& skips) {
    const bool is_device = processor == Processor::device;
    if (TileState* const kept = is_device ? next_of(Queue::kept, skips) : nullptr) return kept;
    if (only_kept) return nullptr;
    const bool is_own = is_device && split_ == UpdateSplit::ratio;
    return next_of(is_own ? Queue::device : Queue::others, skips);
  }
  void count_updated() { --left_; }
  [[nodiscard]] bool all_updated() const { return left_ == 0; }

 private:
  /// Tiles that the device keeps; others that it alone updates; and the rest: for the CPU, or with
  /// UpdateSplit::automatic for the processor that is free first.
  enum class Queue : std::uint8_t { kept, device, others };
  [[nodiscard]] Queue queue_of(const TileState& tile) const {
    if (!tile.kept.empty()) return Queue::kept;
    return split_ == UpdateSplit::ratio && tile.updated_on_device ? Queue::device : Queue::others;
  }
  template <class Skips>
  [[nodiscard]] TileState* next_of(Queue queue, const Skips& skips) {
    std::size_t& cursor = cursors_[static_cast<std::size_t>(queue)];
    while (cursor < flat_->tiles.size()) {
      TileState& tile = flat_->tiles[cursor++];
      if (queue_of(tile) == queue && !skips(tile)) return &tile;
    }
    return nullptr;
  }
  [[nodiscard]] bool begun(std::size_t tile) const {
    return tile < cursors_[static_cast<std::size_t>(queue_of(flat_->tiles[tile]))];
  }

  FlatState* flat_;
  UpdateSplit split_;
  std::size_t left_;
  std::array<std::size_t, 3> cursors_{};
};

}  // namespace penstock::zero
