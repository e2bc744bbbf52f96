#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/zero/engine/engine.hpp>

#include <vector>

namespace penstock::zero {

/// Takes a unit's full gradients to this rank's accumulators: reduce-scatter → copy to host memory → added by a
/// worker, which also sums squares after the last micro-batch. Three hops of one move.
///
/// Used by the trainer's thread.
class GradientPipeline {
 public:
  explicit GradientPipeline(EngineContext& context) : context_(context) {}

  /// A step of so many micro-batches begins.
  void expect(std::uint32_t micro_batches) { micro_batches_ = micro_batches; }
  [[nodiscard]] std::uint32_t micro_batches() const { return micro_batches_; }
  /// Errors: invalid_argument, when every micro-batch of the unit was reduced.
  Result<void> check_not_complete(std::uint32_t unit) const;
  /// The full gradient has `range` from now on; what no parameter covers is zeroed on `stream`.
  Result<void> open(FlatState& flat, const tiers::Reservation& range, tiers::Stream& stream);
  [[nodiscard]] std::vector<GradientSlot> slots(std::uint32_t unit);
  /// The full gradient is written once `stream` has passed this point.
  Result<void> start_reduce(FlatState& flat, tiers::Stream& stream);
  /// Waits until the full gradient is accumulated, and its range free. Errors: the engine has failed.
  Result<void> wait_for_reduce(FlatState& flat);
  /// Nothing of this pipeline is in flight. With the runtime's lock held.
  [[nodiscard]] bool idle() const;

  /// Errors: invalid_argument, naming a flat that was not reduced in every micro-batch.
  Result<void> check_complete() const;
  /// No gradient of a step has been reduced.
  [[nodiscard]] bool untouched(const FlatState& flat) const { return flat.grad.reduced_count == 0; }
  void end_step();

 private:
  EngineContext& context_;
  std::uint32_t micro_batches_ = 1;
};

}  // namespace penstock::zero
