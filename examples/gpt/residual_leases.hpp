#pragma once

#include "gpt/activations.hpp"
#include "gpt/model_description.hpp"

#include <penstock/zero/engine/engine.hpp>

namespace gpt {

/// The inputs of a micro-batch's blocks as checkpoints of the engine: leases the one that a unit reads and the one that
/// it writes, and points Activations::residual at them.
///
/// A block that is one unit holds its leases for one visit, one that is cut for all visits of its units.
class ResidualLeases {
 public:
  /// Number `micro_batch` of the training's micro_batches_at_a_time(). All references outlive it.
  ResidualLeases(const ModelDescription& model, penstock::zero::Engine& engine,
                 penstock::tiers::Stream& stream, Activations& activations, const TrainingConfig& training,
                 std::uint32_t micro_batch)
      : model_(model),
        engine_(engine),
        stream_(stream),
        activations_(activations),
        micro_batches_(training.micro_batches_at_a_time()),
        micro_batch_(micro_batch) {}

  /// All of a rank and step, each as large as the residual stream of a micro-batch.
  [[nodiscard]] static penstock::zero::CheckpointLayout layout(const ModelConfig& model,
                                                               const TrainingConfig& training);

  /// Before and after a unit's forward or its visit in the backward. Errors: those of Engine::checkpoint().
  penstock::Result<void> begin_forward(std::uint32_t unit);
  void end_forward(std::uint32_t unit);
  penstock::Result<void> begin_backward(std::uint32_t unit);
  void end_backward(const BackwardVisit& visit);

 private:
  using Lease = penstock::zero::CheckpointLease;
  penstock::Result<void> take(Lease& lease, std::size_t layer, penstock::zero::CheckpointUse use);
  [[nodiscard]] bool is_embed(std::uint32_t unit) const { return unit == 0; }
  [[nodiscard]] bool is_head(std::uint32_t unit) const { return unit + 1 == model_.units().size(); }
  [[nodiscard]] bool begins_block(std::uint32_t unit) const;
  [[nodiscard]] bool ends_block(std::uint32_t unit) const;
  /// Of the residual stream that the unit reads.
  [[nodiscard]] std::size_t layer_of(std::uint32_t unit) const;

  const ModelDescription& model_;
  penstock::zero::Engine& engine_;
  penstock::tiers::Stream& stream_;
  Activations& activations_;
  const std::uint32_t micro_batches_, micro_batch_;
  Lease in_, out_;
};

}  // namespace gpt
