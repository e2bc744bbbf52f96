#pragma once

#include <penstock/swap/access_trace.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <vector>

namespace penstock::zero {

struct StepShape {
  std::uint32_t rank = 0;
  /// > 0. Of a trainer that takes all micro-batches through a unit before the next one: 1.
  std::uint32_t micro_batches = 1;
  /// The units in the order of their acquires in a micro-batch; empty: unit_order(). A unit that is trained has its
  /// gradient after the last of its acquires, of which there is one at least.
  std::vector<std::uint32_t> acquires = {};
  /// Also uses of tiles that stay in host memory or on the device, which are not recorded: as of tensors that are not
  /// on disk.
  bool all_tiles = false;
  /// Also uses of the layout's activation checkpoints, which the trainer orders: number k is the input of unit k, of
  /// unit k + 1 where there are more units than checkpoints, as after an embedding. It is written in the forward and
  /// read in the backward; those for which the device has no slot leave it, which are the first ones. Not with
  /// `acquires`.
  bool checkpoints = false;
};

/// The uses of host memory in a training step of one rank, as its engine records them in each step after the first, or
/// after the second where `acquires` are others than the engine predicts: each lease ends before the next acquire, and
/// each unit gets a gradient; then one tile after the other is updated. The decisions are those of FlatResidency.
/// Several tiles that are updated at a time are used in an order that time decides. Uses of activation checkpoints are
/// not in it unless they are asked for.
///
/// Errors: invalid_argument, for a plan of another configuration or layout, a rank that it does not have, no
/// micro-batches, acquires that cannot be, and more checkpoints than units; budget_too_small, where the plan's memory
/// has no room for so many micro-batches, or for these acquires.
[[nodiscard]] Result<swap::AccessTrace> derive_trace(const Config& config, const ModelLayout& model,
                                                     const MemoryPlan& plan, const StepShape& shape);

}  // namespace penstock::zero
