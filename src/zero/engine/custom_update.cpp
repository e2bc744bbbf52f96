#include "zero/engine/custom_update.hpp"

#include "cpu_adam/custom_step.hpp"
#include "zero/engine/flat_parts.hpp"

#include <exception>
#include <string>

namespace penstock::zero {

namespace {

Error failed(const UpdateSegment& segment, const char* reason, const std::string& cause) {
  const std::uint64_t last = segment.first + segment.gradient.size() - 1;
  return Error(ErrorCode::failed_state, "Engine::Options::update")
      .reason(reason)
      .object(std::string(segment.name) + " of unit " + std::to_string(segment.parameter.unit) +
              ", elements " + std::to_string(segment.first) + " to " + std::to_string(last) + ", step " +
              std::to_string(segment.step))
      .note("cause   " + cause)
      .advice("remove the cause, and continue from the last save: some masters may be of this step");
}

}  // namespace

Result<cpu_adam::UpdateOutcome> CustomUpdate::update_tile(const FlatLayout& flat, const TileState& tile,
                                                          const cpu_adam::OptimizerTile& view,
                                                          const OffloadedOptimizer::Step& step,
                                                          const cpu_adam::UpdateExecution& execution) const {
  const ElementCount begin = flat.shard * rank_ + tile.range.begin;
  const auto update = [&](const cpu_adam::Fp32Block& block) {
    return for_each_parameter(flat, begin + block.first, ElementCount(block.gradient.size()),
                              [&](const FlatPart& part) {
                                const auto of = [&](auto values) {
                                  return values.empty() ? values : values.subspan(part.offset, part.count);
                                };
                                return call({.parameter = part.parameter,
                                             .name = model_.parameter(part.parameter).name,
                                             .first = part.first,
                                             .group = flat.group,
                                             .step = step.number,
                                             .settings = step.settings[flat.group],
                                             .gradient = of(block.gradient),
                                             .master = of(block.master),
                                             .first_moment = of(block.first_moment),
                                             .second_moment = of(block.second_moment)});
                              });
  };
  return cpu_adam::custom_step(update, step.gradient_factor, view, execution);
}

Result<void> CustomUpdate::call(const UpdateSegment& segment) const noexcept {
  try {
    auto updated = function_(segment);
    if (updated) return ok();
    return failed(segment, "the update function has returned an error", updated.error().message());
  } catch (const std::exception& thrown) {
    return failed(segment, "the update function has thrown an exception", thrown.what());
  } catch (...) {
    return failed(segment, "the update function has thrown an exception", "not a std::exception");
  }
}

}  // namespace penstock::zero
