#pragma once

#include "zero/engine/device_update.hpp"
#include "zero/engine/engine_context.hpp"
#include "zero/engine/offloaded_optimizer.hpp"

#include <atomic>
#include <cstdint>
#include <memory>

namespace penstock::zero {

enum class Processor : std::uint8_t { cpu, device };

/// Updates tiles, one after the other: leases the tile, updates it on the CPU or in a slot of the device, and ends the
/// lease. Several lanes update different tiles at a time.
///
/// Used by the mover.
class TileLane {
 public:
  /// A lane of the CPU, or of slot number `slot` if `device` is not null.
  TileLane(EngineContext& context, const OffloadedOptimizer& optimizer, Executor& executor,
           DeviceUpdate* device, std::size_t slot)
      : context_(context), optimizer_(optimizer), executor_(executor), device_(device), slot_(slot) {}
  TileLane(const TileLane&) = delete;
  TileLane& operator=(const TileLane&) = delete;

  [[nodiscard]] Processor processor() const { return device_ ? Processor::device : Processor::cpu; }
  [[nodiscard]] bool idle() const { return tile_ == nullptr; }
  /// Holds nothing yet, and waits for the lease of its tile.
  [[nodiscard]] bool waits_for_lease() const { return !idle() && tile_->kept.empty() && !state_.held(); }
  [[nodiscard]] FlatState& flat() const { return *flat_; }
  [[nodiscard]] const TileState& tile() const { return *tile_; }
  /// As swap::Hop::poll_interval().
  [[nodiscard]] TimePoint poll_interval() const { return hop_ ? hop_->poll_interval() : forever; }

  /// Requests the lease of the tile, whose flat's gradient and shard are leased. Precondition: idle.
  void begin(FlatState& flat, TileState& tile, const OffloadedOptimizer::Step& step);
  enum class State : std::uint8_t { busy, updated, stopped };
  /// How far the tile is; call end() unless `busy`, and after an error. With `stopping` its update does not begin any
  /// more: it is `stopped` instead.
  ///
  /// Errors: those of the lease, of OffloadedOptimizer and of DeviceUpdate.
  [[nodiscard]] Result<State> poll(bool stopping);
  /// After an error: whether the device may use the leases of the tile and its flat for ever.
  [[nodiscard]] bool device_may_use_leases() const {
    return on_device_ != nullptr && on_device_->may_use_leases();
  }
  /// How long this lane has worked on tiles, without its waits for their leases. Safe from any thread.
  [[nodiscard]] TimePoint busy() const { return TimePoint(busy_ns_.load(std::memory_order_relaxed)); }
  /// Ends the lease of the tile, or withdraws the request for it. The lane is idle then.
  void end();

 private:
  [[nodiscard]] bool update_has_begun() const { return hops_begun_ > (device_ == nullptr ? 0u : 1u); }
  /// The next part of the work on the tile; null after the last one.
  [[nodiscard]] std::unique_ptr<swap::Hop> next_hop();
  [[nodiscard]] std::unique_ptr<swap::Hop> next_device_hop();
  template <class Work>
  [[nodiscard]] std::unique_ptr<swap::Hop> on_workers(Work work);
  /// In the timeline, since `since_`, which is now then.
  void note(const char* track);

  EngineContext& context_;
  const OffloadedOptimizer& optimizer_;
  Executor& executor_;
  DeviceUpdate* const device_;
  const std::size_t slot_;

  FlatState* flat_ = nullptr;
  TileState* tile_ = nullptr;
  const OffloadedOptimizer::Step* step_ = nullptr;
  swap::PendingLease pending_;
  swap::Lease state_;
  std::uint32_t hops_begun_ = 0;
  std::unique_ptr<swap::Hop> hop_;
  TimePoint since_{};  // since when the tile waits for its lease, or is worked on
  std::atomic<std::int64_t> busy_ns_{0};
  const DeviceUpdate::TileHop* on_device_ = nullptr;  // hop_, while it is one
};

}  // namespace penstock::zero
