// The update beside the trainer: which flat is next, what is asked for ahead, and who waits.
#include "swap/simulate/replay.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

namespace penstock::swap {

/// The trainer waits for the update of what it uses. The update waits for the disk to take the tiles that it has
/// changed: more of them would only fill the memory.
bool Replay::must_wait(const Thread& thread, const AccessTrace::Use& use) const {
  if (&thread == &trainer_) return waits_for_update(use);
  return trace_.tensors[use.tensor].purpose == tiers::Purpose::optimizer_tile &&
         residency_.stores_pending() > stores_max_;
}

bool Replay::waits_for_update(const AccessTrace::Use& use) const {
  if (trace_.tensors[use.tensor].purpose == tiers::Purpose::gradient_shard) return of_last_round_ > 0;
  const auto flat = uses_.flat_of[use.tensor];
  return flat && flats_[*flat].waits;
}

void Replay::add_flat(std::uint32_t number, bool of_last_round) {
  Flat& flat = flats_[number];
  flat.waits = true;
  flat.of_last_round = of_last_round;
  ++waiting_;
  if (of_last_round) ++of_last_round_;
  first_waiting_ = std::min(first_waiting_, number);
  if (update_.is_done()) begin_flat();
}

void Replay::begin_flat() {
  if (waiting_ == 0) return;
  while (!flats_[first_waiting_].waits) ++first_waiting_;
  updating_ = first_waiting_;
  update_.next = uses_.flats[updating_].begin;
  update_.end = uses_.flats[updating_].end;
}

void Replay::end_flat() {
  for (const AccessTrace::Use& held : std::exchange(update_.held, {})) release(held);
  Flat& flat = flats_[updating_];
  flat.waits = false;
  --waiting_;
  const bool was_last = std::exchange(flat.of_last_round, false) && --of_last_round_ == 0;
  begin_flat();
  if (was_last) ask_for_flats(dropped_between_, dropped_between_);
}

/// For those that wait, then those that are added next, as far as that is known: at most `of_first` of the first flat,
/// and further ones while there are fewer than `of_all`.
void Replay::ask_for_flats(std::uint32_t of_first, std::uint32_t of_all) {
  std::uint32_t count = of_first;
  bool is_first = true;
  const auto ask = [&](const StepUses::Flat& flat) {
    const std::uint32_t asked = ask_ahead(update_, flat.begin, flat.end, count);
    count = std::exchange(is_first, false) ? of_all - std::min(asked, of_all) : count - asked;
  };
  if (update_.dropped.empty()) return;
  std::uint32_t seen = 0;
  for (std::uint32_t flat = first_waiting_; count > 0 && seen < waiting_; ++flat) {
    if (!flats_[flat].waits) continue;
    ++seen;
    if (update_.is_done() || flat != updating_) ask(uses_.flats[flat]);
  }
  if (of_last_round_ > 0) return;
  for (std::size_t i = next_added_; count > 0 && i < uses_.added_after.size(); ++i)
    ask(uses_.flats[uses_.added_after[i]]);
  for (std::size_t i = 0; count > 0 && !update_in_backward_ && i < flats_.size(); ++i) ask(uses_.flats[i]);
}

}  // namespace penstock::swap
