#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/swap/runtime.hpp>

#include <memory>
#include <string>
#include <vector>

namespace penstock::zero {

/// A copy of a checkpoint between its slot of the device's memory and its tensor.
struct CheckpointCopy {
  std::string name;  ///< of the checkpoint, for messages
  DeviceSpan slot;
  std::vector<tiers::Fence> after;  ///< the copy waits for these
  tiers::Fence* copied = nullptr;   ///< set before the hop reports `ordered`
};

/// Copies a slot to the host bytes of a tensor, for which `lease` is one to overwrite.
[[nodiscard]] std::unique_ptr<swap::Hop> make_checkpoint_store_hop(EngineContext& context,
                                                                   CheckpointCopy copy,
                                                                   swap::PendingLease lease);
/// Copies the host bytes of a tensor to a slot, for which `lease` is one to read.
[[nodiscard]] std::unique_ptr<swap::Hop> make_checkpoint_load_hop(EngineContext& context, CheckpointCopy copy,
                                                                  swap::PendingLease lease);

}  // namespace penstock::zero
