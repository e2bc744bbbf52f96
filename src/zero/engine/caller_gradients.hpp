#pragma once

#include "zero/engine/engine_context.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/zero/engine/engine.hpp>

#include <span>

namespace penstock::zero {

/// Copies the gradients of a unit from memory of the caller to its full gradient.
///
/// Used by the trainer's thread. prepare() blocks if it needs more device memory than before.
class CallerGradients {
 public:
  CallerGradients(EngineContext& context, Compute& compute) : context_(context), compute_(compute) {}
  CallerGradients(const CallerGradients&) = delete;
  CallerGradients& operator=(const CallerGradients&) = delete;
  /// No stream uses the staging memory any more.
  ~CallerGradients();

  /// Errors: invalid_argument, for gradients that are not those of the unit's parameters; budget_too_small, when the
  /// device has no room for the largest gradient that cannot be copied directly.
  Result<void> prepare(std::uint32_t unit, std::span<const GradientSource> gradients);
  /// Releases the staging memory until it is needed again; returns its size. No stream uses it any more.
  ByteCount release();
  /// Enqueues the copies of prepared gradients on `stream`. An error fails the engine.
  Result<void> copy(std::span<const GradientSource> gradients, std::span<const GradientSlot> slots,
                    tiers::Stream& stream);

 private:
  [[nodiscard]] Result<void> check(const ParameterLayout& parameter, const GradientSource& gradient) const;
  [[nodiscard]] Result<void> check_empty(const ParameterLayout& frozen, const GradientSource& gradient) const;
  [[nodiscard]] Result<void> check_apart(const std::string& name, const GradientSource& gradient) const;
  Result<void> copy_one(const GradientSource& gradient, const GradientSlot& slot, tiers::Stream& stream);
  [[nodiscard]] ByteCount staging_needed(ParameterId id, const GradientSource& gradient) const;
  Result<DeviceTensor> on_device(const HostTensor& gradient, tiers::Stream& stream);

  EngineContext& context_;
  Compute& compute_;
  DeviceSpan staging_;   // of gradients in host memory that are not copied directly
  tiers::Fence staged_;  // after the last use of it, on any stream; null: there was none
};

}  // namespace penstock::zero
