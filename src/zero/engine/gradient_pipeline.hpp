#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/zero/engine/engine.hpp>

#include <span>
#include <vector>

namespace penstock::zero {

/// Reduces full gradients to this rank's accumulators, each with one move of three hops: reduce-scatter, copy to host
/// memory, accumulation by a worker, which also sums the squares after the last micro-batch. FlatResidency decides
/// which of them share a collective.
///
/// Used by the trainer's thread.
class GradientPipeline {
 public:
  explicit GradientPipeline(EngineContext& context) : context_(context), units_(context.model.units.size()) {}

  /// The units of `without_gradient` are not reduced in this step.
  void begin_step(std::uint32_t micro_batches, std::vector<std::uint32_t> without_gradient);
  [[nodiscard]] std::uint32_t micro_batches() const { return micro_batches_; }
  [[nodiscard]] const std::vector<std::uint32_t>& units_without_gradient() const { return without_gradient_; }
  /// How many units are reduced in a micro-batch of this step.
  [[nodiscard]] std::size_t units_to_reduce() const;
  /// How many micro-batches of this step have begun to reduce or may acquire units.
  [[nodiscard]] std::uint32_t micro_batches_begun() const;
  /// Errors: invalid_argument, when the unit gets no gradient in this step, when every micro-batch of it was reduced,
  /// or when units that share its parameters have still to reduce theirs of the last one.
  Result<void> check_expected(const char* operation, std::uint32_t unit) const;
  /// Whether the unit's next gradient is that of the step's last micro-batch.
  [[nodiscard]] bool is_last_micro_batch(std::uint32_t unit) const {
    return units_[unit].written + 1 == micro_batches_;
  }
  /// Of how many micro-batches of this step the unit's gradient was closed.
  [[nodiscard]] std::uint32_t closed(std::uint32_t unit) const { return units_[unit].written; }
  /// Whether slots() was called for the unit and its gradient is not reduced yet.
  [[nodiscard]] bool is_open(std::uint32_t unit) const { return units_[unit].open; }
  /// Assigns `range` to the full gradient and zeroes its padding on `stream`. Without a range, leases the gradient
  /// shard, which is the full gradient; errors are then those of Runtime::acquire().
  Result<void> open(FlatState& flat, const tiers::Reservation& range, tiers::Stream& stream);
  /// Work on `stream` may write the slots then. A repeated call returns the same ones: what is written next replaces
  /// what was written before. Errors: invalid_argument, for a repeated call of a unit that shares parameters: a slot
  /// may have the sum of several units.
  Result<std::vector<GradientSlot>> slots(const char* operation, std::uint32_t unit, tiers::Stream& stream);
  /// The work that writes the unit's gradient is enqueued on `stream`. Its flats that no other unit has still to write
  /// can be closed.
  Result<void> close(std::uint32_t unit, tiers::Stream& stream);
  /// The flat's full gradient is complete: the work that writes it is enqueued on `stream` before this call.
  Result<void> close_flat(FlatState& flat, tiers::Stream& stream);
  /// Starts the reduction of flats that were closed, by one collective.
  void reduce(std::span<const std::uint32_t> flats);
  /// Releases the range of the full gradient: the next user waits for its copy to host memory. Blocks until that is
  /// enqueued; where the device's memory is host memory, until the gradient is accumulated. An error fails the engine.
  Result<void> finish_use(FlatState& flat, const tiers::Reservation& range);
  /// Waits until all gradients are accumulated. An error fails the engine.
  Result<void> finish_reductions();
  /// Whether no reduction is in flight. Call with the runtime's lock held.
  [[nodiscard]] bool idle() const;

  /// Errors: invalid_argument, naming the units that were not reduced in every micro-batch.
  Result<void> check_complete() const;
  /// Whether the flat's gradients of all micro-batches are written.
  [[nodiscard]] bool is_complete(std::uint32_t flat) const {
    return context_.flats[flat].grad.closed_count == micro_batches_;
  }
  /// Whether no gradient of the flat has been reduced in this step.
  [[nodiscard]] bool untouched(const FlatState& flat) const { return flat.grad.closed_count == 0; }
  void end_step();
  /// Discards the gradients of an abandoned step. Precondition: no reduction is in flight.
  Result<void> abandon_step();

 private:
  Result<void> wait_for_accumulation(FlatState& flat);
  /// Makes `stream` wait for what other units have done with a flat that it shares with them.
  Result<void> wait_for_other_units(const FlatState& flat, tiers::Stream& stream);
  Result<void> note_written(FlatState& flat, tiers::Stream& stream);
  /// Whether several units write its gradient.
  [[nodiscard]] bool is_shared(const FlatState& flat) const;

  struct UnitState {
    bool absent = false;  ///< the unit gets no gradient in this step
    bool open = false;
    std::uint32_t written = 0;  ///< micro-batches of this step whose gradient was closed
  };

  EngineContext& context_;
  std::uint32_t micro_batches_ = 1;
  std::vector<std::uint32_t> without_gradient_;
  std::vector<UnitState> units_;
};

}  // namespace penstock::zero
