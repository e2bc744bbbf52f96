#include "zero/engine/tile_lane.hpp"

#include "base/abandon.hpp"

#include <utility>

namespace penstock::zero {

void TileLane::begin(FlatState& flat, TileState& tile, const OffloadedOptimizer::Step& step) {
  flat_ = &flat;
  tile_ = &tile;
  step_ = &step;
  hops_begun_ = 0;
  since_ = Clock::steady().now();
  if (!tile.kept.empty()) return;
  const bool in_memory = tile.place == TilePlace::memory;
  pending_ = context_.internals.request_for_mover(tile.tensor, swap::Access::modify,
                                                  in_memory ? swap::Use::unrecorded : swap::Use::recorded);
}

Result<TileLane::State> TileLane::poll(bool stopping) {
  if (waits_for_lease()) {
    if (stopping) return State::stopped;
    auto answer = pending_.poll();
    if (!answer) return State::busy;
    PENSTOCK_TRY_ASSIGN(state_, *std::move(answer));
    note("waits for tiles");
  }
  while (true) {
    if (!hop_) {
      if (stopping && !update_has_begun()) return State::stopped;
      hop_ = next_hop();
      if (!hop_) {
        optimizer_.stamp(*tile_, step_->number);
        const TimePoint began = since_;
        note(device_ == nullptr ? "updates by the CPU" : "updates on the device");
        busy_ns_ += (since_ - began).count();
        return State::updated;
      }
      PENSTOCK_TRY(hop_->start());
    }
    PENSTOCK_TRY_ASSIGN(const swap::HopState state, hop_->poll());
    if (state != swap::HopState::done) return State::busy;
    on_device_ = nullptr;
    hop_.reset();
  }
}

void TileLane::note(const char* track) {
  if (swap::Timeline* const timeline = context_.internals.timeline())
    timeline->add_of_tensor(track, tile_->name(), since_);
  since_ = Clock::steady().now();
}

void TileLane::end() {
  if (device_may_use_leases()) abandon(std::move(state_));
  on_device_ = nullptr;
  hop_.reset();
  pending_ = {};
  state_.end();
  tile_ = nullptr;
}

template <class Work>
std::unique_ptr<swap::Hop> TileLane::on_workers(Work work) {
  return swap::make_work_hop(executor_, context_.wake, std::move(work));
}

std::unique_ptr<swap::Hop> TileLane::next_hop() {
  if (device_ != nullptr) return next_device_hop();
  if (hops_begun_++ > 0) return nullptr;
  return on_workers([this] { return optimizer_.update_tile(*flat_, *tile_, state_.bytes(), *step_); });
}

std::unique_ptr<swap::Hop> TileLane::next_device_hop() {
  const bool has_checksums = optimizer_.has_checksums(*tile_);
  switch (hops_begun_++) {
    case 0:
      if (has_checksums) return on_workers([this] { return optimizer_.verify(*tile_, state_.bytes()); });
      return next_device_hop();
    case 1: {
      auto hop = device_->make_hop(slot_, optimizer_, *flat_, *tile_, state_.bytes(), *step_);
      on_device_ = hop.get();
      return hop;
    }
    case 2:
      if (!has_checksums) return nullptr;
      return on_workers([this]() -> Result<void> {
        optimizer_.seal(*tile_, state_.bytes(), *step_);
        return ok();
      });
    default: return nullptr;
  }
}

}  // namespace penstock::zero
