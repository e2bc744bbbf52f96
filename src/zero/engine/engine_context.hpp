#pragma once

#include "zero/comm/collective_hops.hpp"
#include "zero/comm/hop_order.hpp"
#include "zero/engine/flat_state.hpp"

#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/model_layout.hpp>
#include "tiers/store/memory_budget.hpp"

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace penstock::zero {

/// What the parts of one rank's engine share: where they run, the flats, and whether the engine has failed.
/// Used by the trainer's thread; the mover uses the streams, the orders and the communicator.
struct EngineContext {
  EngineContext(swap::Runtime& on, tiers::Device& with, Communicator& group, const Config& settings,
                const ModelLayout& layout)
      : runtime(on),
        device(with),
        communicator(group),
        config(settings),
        model(layout),
        shards(layout, group.size()) {}

  /// Streams, events and device memory. Errors: those of the device.
  Result<void> open(ByteCount device_budget);
  [[nodiscard]] CollectiveContext collectives();
  [[nodiscard]] DeviceTensor at(const tiers::Reservation& range, ElementCount count) const;

  /// The engine cannot go on: peers are told, and every later call fails. Returns `error`.
  Result<void> fail(const Error& error);
  /// A failed write-behind can be tried again, unless its swap file is out of use: then the engine fails.
  Result<void> fail_unless_retryable(Result<void> stores);
  /// Host bytes of all ranks. Blocks. Errors: the engine has failed.
  Result<void> exchange(ConstHostSpan mine, HostSpan all);

  swap::Runtime& runtime;
  tiers::Device& device;
  Communicator& communicator;
  const Config& config;
  const ModelLayout& model;
  const ShardLayout shards;

  DeviceSpan device_memory;
  std::unique_ptr<tiers::Stream> copy_in, copy_out, communication;
  std::unique_ptr<tiers::Event> compute_progress;  ///< past this, ranges that were released may be written
  HopOrder collective_order;
  HopOrder
      accumulation_order;  ///< of the leases that gradients go to: one hop at a time holds some and waits for more
  std::vector<FlatState> flats;
  const std::function<void()> wake = [this] { runtime.wake(); };  ///< of the mover
  std::optional<Error> failure;
};

}  // namespace penstock::zero
