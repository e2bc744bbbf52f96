#include "zero/layout/checkpoint_slots.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <limits>
#include <utility>

namespace penstock::zero {

void CheckpointSlots::note_use(std::uint32_t checkpoint, Contents needs) {
  const Use use{checkpoint, needs};
  recording_.push_back(use);
  places_[checkpoint].last_use = ++uses_;
  places_[checkpoint].needed = true;
  follows_ = follows_ && position_ < order_.size() && order_[position_] == use;
  ++position_;
}

std::uint64_t CheckpointSlots::uses_until(std::uint32_t checkpoint) const {
  const std::vector<std::size_t>& positions = positions_[checkpoint];
  const auto next = std::lower_bound(positions.begin(), positions.end(), position_);
  return !follows_ || next == positions.end() ? std::numeric_limits<std::uint64_t>::max() : *next - position_;
}

std::optional<std::uint32_t> CheckpointSlots::choose(std::uint64_t before) const {
  std::optional<std::uint32_t> chosen;
  std::pair<std::uint64_t, std::uint64_t> best;  // uses until needed, then uses since the last one
  for (std::uint32_t slot = 0; slot < occupants_.size(); ++slot) {
    if (!occupants_[slot]) return slot;
    const std::uint32_t checkpoint = *occupants_[slot];
    const Place& place = places_[checkpoint];
    if (place.leased) continue;
    constexpr std::uint64_t never = std::numeric_limits<std::uint64_t>::max();
    const std::pair later =
        place.needed ? std::pair(uses_until(checkpoint), uses_ - place.last_use) : std::pair(never, never);
    if (later.first < before || (chosen && later <= best)) continue;
    chosen = slot;
    best = later;
  }
  return chosen;
}

void CheckpointSlots::place(std::uint32_t checkpoint, std::uint32_t slot) {
  PENSTOCK_CHECK(!occupants_[slot] && !places_[checkpoint].slot);
  occupants_[slot] = checkpoint;
  places_[checkpoint].slot = slot;
}

void CheckpointSlots::remove(std::uint32_t checkpoint, bool moved) {
  PENSTOCK_CHECK(places_[checkpoint].slot && !places_[checkpoint].leased);
  occupants_[*places_[checkpoint].slot].reset();
  places_[checkpoint].slot.reset();
  leaving_.resize(places_.size());
  if (moved) leaving_[checkpoint] = true;
}

void CheckpointSlots::end_step() {
  order_ = std::exchange(recording_, {});
  for (auto& positions : positions_) positions.clear();
  for (std::size_t at = 0; at < order_.size(); ++at) positions_[order_[at].checkpoint].push_back(at);
  left_ = std::exchange(leaving_, std::vector<bool>(places_.size()));
  left_.resize(places_.size());
  position_ = 0;
  follows_ = true;
}

void CheckpointSlots::abandon_step() {
  recording_.clear();
  leaving_.clear();
  position_ = 0;
  follows_ = !order_.empty();
}

}  // namespace penstock::zero
