#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

namespace penstock::zero {

/// The hyperparameters of an optimizer group in one step: as the schedule, StepOptions, the group and the configuration
/// say.
struct GroupHyperparameters {
  float learning_rate = 0, beta1 = 0, beta2 = 0, epsilon = 0, weight_decay = 0;
};

/// Consecutive elements of one parameter for an update function, at most 16384, all in cache. The spans have one value
/// for each element, and are valid during the call.
struct UpdateSegment {
  ParameterId parameter;
  std::string_view name;            ///< ParameterLayout::name
  std::uint64_t first = 0;          ///< which element of the parameter is the first one here
  std::uint32_t group = 0;          ///< an index into ModelLayout::groups
  std::uint64_t step = 0;           ///< the number of the step, from 1; skipped steps are not counted
  GroupHyperparameters settings;    ///< of the group in this step
  std::span<const float> gradient;  ///< reduced over ranks and micro-batches, unscaled and clipped
  std::span<float> master;          ///< read and written; the engine rounds the parameter from it
  /// Read and written, of any sign, 0 at first; empty for those beyond optimizer.params.moments.
  std::span<float> first_moment, second_moment;
};

/// The caller's own optimizer: updates master and moments of one segment, in place. For a configuration with
/// `"optimizer": {"type": "Custom", "params": {"moments": 1}}`.
///
///     [](const UpdateSegment& s) -> Result<void> {  // SGD with momentum
///       for (std::size_t i = 0; i < s.gradient.size(); ++i) {
///         s.first_moment[i] = s.settings.beta1 * s.first_moment[i] + s.gradient[i];
///         s.master[i] -= s.settings.learning_rate * s.first_moment[i];
///       }
///       return ok();
///     }
///
/// Each step that updates passes each element of this rank's shards once, padding and frozen parameters never. How a
/// parameter is divided into segments depends on the number of ranks and on its place in its unit, not on tiers and
/// tile sizes: if each element is updated by itself, the result depends on none of these.
///
/// Called by the threads of the update beside the trainer's, for different segments at the same time. It must not call
/// the engine. An error or an exception ends the update before the next segments, and fails the engine: the segment may
/// be changed in part, and no segment is ever updated twice. The next call that waits for the update returns
/// failed_state with the segment and the cause.
using UpdateFunction = std::function<Result<void>(const UpdateSegment& segment)>;

}  // namespace penstock::zero
