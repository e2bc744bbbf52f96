#include "zero/engine/device_update.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace penstock::zero {

using swap::HopState;

/// Enqueues everything when it starts; then waits for the copy out.
class DeviceUpdate::Hop final : public TileHop {
 public:
  Hop(DeviceUpdate& update, std::size_t slot, const OffloadedOptimizer& optimizer, const FlatState& flat,
      const TileState& tile, HostSpan state, const OffloadedOptimizer::Step& step)
      : update_(update),
        context_(update.context_),
        slot_(slot),
        optimizer_(optimizer),
        flat_(flat),
        tile_(tile),
        host_(optimizer.view(tile, state, flat.open_shard.bytes(), flat.open_gradient.bytes())),
        step_(step) {}

  Result<void> start() override {
    auto enqueued = enqueue();
    if (!enqueued) error_ = std::move(enqueued).error().note("noticed by the update of " + tile_.name());
    const auto recorded = record_end(/*all_streams=*/!enqueued);
    end_is_known_ = recorded.has_value();
    if (!recorded && !error_) error_ = recorded.error();
    return ok();
  }

  Result<HopState> poll() override {
    if (!end_is_known_) return *error_;
    PENSTOCK_TRY_ASSIGN(const bool ended, context_.copied_out.has_passed(end_));
    if (!ended) return HopState::pending;
    if (error_) return *error_;
    PENSTOCK_TRY(check_finite());
    return HopState::done;
  }

  TimePoint poll_interval() const override { return context_.copied_out.next_query(); }
  bool may_use_leases() const override { return !end_is_known_ || context_.copied_out.hangs(); }

 private:
  [[nodiscard]] DeviceSpan part(ByteCount begin, ByteCount size) const {
    return update_.slots_[slot_].subspan(begin, size);
  }
  [[nodiscard]] DeviceSpan result() const {
    return part(update_.places_.first_non_finite_block, UpdateSlot::result);
  }
  [[nodiscard]] HostSpan result_on_host() const {
    return update_.results_.subspan(UpdateSlot::result * slot_, UpdateSlot::result);
  }

  Result<void> enqueue() {
    const cpu_adam::DeviceAdamTile tile = on_device();
    PENSTOCK_TRY_ASSIGN(const auto copied_in, copy_in(tile));
    if (copied_in) PENSTOCK_TRY(context_.update_stream->wait(*copied_in));
    PENSTOCK_TRY(update_.adam_->step(context_.update_stream->handle(),
                                     std::get<cpu_adam::AdamConfig>(step_.configs[flat_.layout->group]),
                                     step_.number, step_.gradient_factor, tile));
    PENSTOCK_TRY_ASSIGN(const auto updated, context_.events.record(*context_.update_stream));
    PENSTOCK_TRY(context_.copy_out->wait(*updated));
    return copy_out(tile);
  }

  /// The parts of the tile that are kept on the device, and the slot's for the others.
  [[nodiscard]] cpu_adam::DeviceAdamTile on_device() const {
    const auto kept_part = [&](DeviceSpan kept, DType dtype) {
      return kept.subspan(size_of(dtype) * tile_.range.begin.value(),
                          size_of(dtype) * tile_.range.count.value());
    };
    cpu_adam::DeviceAdamTile tile{
        .state = tile_.kept,
        .gradient = {kept_part(flat_.kept_gradient, host_.gradient_dtype), host_.gradient_dtype},
        .parameter = {kept_part(flat_.kept_shard, host_.parameter_dtype), host_.parameter_dtype},
        .first_non_finite_block = result(),
        .format = host_.format,
        .first_element = host_.first_element};
    if (!host_.state.empty()) tile.state = part({}, host_.state.size());
    if (!host_.gradient.empty()) tile.gradient.bytes = part(update_.places_.gradient, host_.gradient.size());
    if (!host_.parameter.empty()) {
      tile.parameter.bytes = part(update_.places_.parameter, host_.parameter.size());
    }
    return tile;
  }

  /// Null if nothing is copied.
  Result<tiers::Fence> copy_in(const cpu_adam::DeviceAdamTile& tile) {
    struct Copy {
      ConstHostSpan from;
      DeviceSpan to;
    };
    const HostSpan parameter = optimizer_.reads_parameters() ? host_.parameter : HostSpan();
    ByteCount bytes;
    for (const auto& [from, to] : {Copy{host_.state, tile.state}, Copy{host_.gradient, tile.gradient.bytes},
                                   Copy{parameter, tile.parameter.bytes}}) {
      if (from.empty()) continue;
      PENSTOCK_TRY(context_.device.copy_to_device(context_.copy_in->handle(), from, to));
      bytes += from.size();
    }
    if (bytes.is_zero()) return tiers::Fence();
    PENSTOCK_TRY_ASSIGN(const auto copied,
                        context_.copied_in.record(*context_.copy_in, context_.events, bytes, tile_.name()));
    return copied.fence();
  }

  Result<void> copy_out(const cpu_adam::DeviceAdamTile& tile) {
    const StreamHandle stream = context_.copy_out->handle();
    if (!host_.state.empty()) PENSTOCK_TRY(context_.device.copy_to_host(stream, tile.state, host_.state));
    if (!host_.parameter.empty()) {
      PENSTOCK_TRY(context_.device.copy_to_host(stream, tile.parameter.bytes, host_.parameter));
    }
    return context_.device.copy_to_host(stream, tile.first_non_finite_block, result_on_host());
  }

  /// After an error, copies in and kernels may be enqueued that no copy out waits for.
  Result<void> record_end(bool all_streams) {
    if (all_streams) {
      for (tiers::Stream* stream : {context_.copy_in.get(), context_.update_stream.get()}) {
        PENSTOCK_TRY_ASSIGN(const auto fence, context_.events.record(*stream));
        PENSTOCK_TRY(context_.copy_out->wait(*fence));
      }
    }
    const ByteCount bytes = host_.state.size() + host_.parameter.size();
    PENSTOCK_TRY_ASSIGN(end_,
                        context_.copied_out.record(*context_.copy_out, context_.events, bytes, tile_.name()));
    return ok();
  }

  [[nodiscard]] Result<void> check_finite() const {
    std::uint64_t block = 0;
    std::memcpy(&block, result_on_host().data(), sizeof(block));
    if (block == ~std::uint64_t{0}) return ok();
    return optimizer_.check_finite(tile_, block);
  }

  DeviceUpdate& update_;
  EngineContext& context_;
  const std::size_t slot_;
  const OffloadedOptimizer& optimizer_;
  const FlatState& flat_;
  const TileState& tile_;
  const cpu_adam::OptimizerTile host_;
  const OffloadedOptimizer::Step& step_;
  tiers::StreamProgress::Point end_;
  bool end_is_known_ = false;  // end_ is after everything that uses the leases
  std::optional<Error> error_;
};

Result<void> DeviceUpdate::open(const MemoryPlan& plan, DeviceSpan memory, HostSpan results, HostSpan piece) {
  PENSTOCK_TRY_ASSIGN(context_.update_stream, context_.create_stream("stream of updates"));
  ElementCount longest;
  for (const FlatState& flat : context_.flats) {
    for (const TileState& tile : flat.tiles) longest = std::max(longest, tile.range.count);
  }
  PENSTOCK_TRY_ASSIGN(places_, UpdateSlot::of(plan, context_.config, longest));
  PENSTOCK_TRY_ASSIGN(piece_places_, HostPiece::of(plan, context_.config, longest));
  results_ = results;
  piece_ = piece;
  for (std::uint32_t slot = 0; slot < plan.update.device_slots; ++slot) {
    slots_.push_back(memory.subspan(plan.update.slot * slot, plan.update.slot));
  }
  return ok();
}

Result<void> DeviceUpdate::begin_sweep() {
  if (context_.update_stream == nullptr) return ok();
  PENSTOCK_TRY_ASSIGN(const auto gathered, context_.events.record(*context_.copy_in));
  return context_.update_stream->wait(*gathered);
}

Result<void> DeviceUpdate::read(DeviceSpan kept, HostSpan to) {
  const auto copied = context_.device.copy_to_host(context_.update_stream->handle(), kept, to);
  PENSTOCK_TRY(context_.finish(*context_.update_stream,
                               "copies of kept states"));  // a part of a copy that fails may be enqueued
  return copied;
}

Result<void> DeviceUpdate::write(ConstHostSpan from, DeviceSpan kept) {
  PENSTOCK_TRY(begin_sweep());  // a gather may still copy what is overwritten
  const auto copied = context_.device.copy_to_device(context_.update_stream->handle(), from, kept);
  PENSTOCK_TRY(context_.finish(*context_.update_stream, "copies of kept states"));
  return copied;
}

std::unique_ptr<DeviceUpdate::TileHop> DeviceUpdate::make_hop(std::size_t slot,
                                                              const OffloadedOptimizer& optimizer,
                                                              const FlatState& flat, const TileState& tile,
                                                              HostSpan state,
                                                              const OffloadedOptimizer::Step& step) {
  return std::make_unique<Hop>(*this, slot, optimizer, flat, tile, state, step);
}

}  // namespace penstock::zero
