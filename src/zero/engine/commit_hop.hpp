#pragma once

#include "zero/engine/engine_context.hpp"
#include "zero/engine/range_copies.hpp"

#include <penstock/swap/runtime.hpp>

#include <atomic>
#include <memory>
#include <vector>

namespace penstock::zero {

/// One range of the device, and the tensor of a side runtime that gets its bytes.
struct DeviceCopy {
  MemoryRange range;
  tiers::TensorId to{};
};

/// Copies ranges of the device to leased memory of `side`, which stores it, a few at a time, behind what the mover has
/// enqueued. A hop of the engine's runtime; `side` and `stop` outlive it. Once `stop` is set it ends with an error as
/// soon as no copy is in flight.
[[nodiscard]] std::unique_ptr<swap::Hop> make_commit_hop(EngineContext& context,
                                                         std::vector<DeviceCopy> copies, swap::Runtime& side,
                                                         const std::atomic<bool>& stop);

}  // namespace penstock::zero
