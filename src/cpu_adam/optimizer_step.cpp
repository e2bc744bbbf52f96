#include <penstock/cpu_adam/optimizers.hpp>

#include "cpu_adam/step_coefficients.hpp"
#include "cpu_adam/update_tile.hpp"

#include <string>
#include <vector>

namespace penstock::cpu_adam {

using detail::Piece;

static_assert(optimizer_of(AdamConfig{}) == Optimizer::adam &&
              optimizer_of(LionConfig{}) == Optimizer::lion &&
              optimizer_of(AdagradConfig{}) == Optimizer::adagrad);

namespace {

Result<kernels::AdamCoefficients> coefficients(const char* operation, const Hyperparameters& config,
                                               std::uint64_t step, float gradient_factor,
                                               const OptimizerTile& tile) {
  if (optimizer_of(config) != tile.optimizer) {
    return Error::invalid_argument(operation)
        .object("optimizer")
        .reason("the hyperparameters are those of another optimizer than the tile's")
        .wanted(std::string(to_string(tile.optimizer)))
        .got(std::string(to_string(optimizer_of(config))));
  }
  return step_coefficients(config, step, gradient_factor);
}

Result<UpdateOutcome> step_in_one(const char* operation, const Hyperparameters& config, std::uint64_t step,
                                  float gradient_factor, const OptimizerTile& tile,
                                  const UpdateExecution& execution) {
  PENSTOCK_TRY_ASSIGN(const auto whole_tile, coefficients(operation, config, step, gradient_factor, tile));
  const Piece whole{tile.elements.value(), whole_tile};
  return detail::update_tile(operation, std::span(&whole, 1), step, tile, execution);
}

/// Segment: AdamSegment or OptimizerSegment.
template <class Segment>
Result<UpdateOutcome> step_in_segments(const char* operation, std::span<const Segment> segments,
                                       std::uint64_t step, float gradient_factor, const OptimizerTile& tile,
                                       const UpdateExecution& execution) {
  const auto name = [](std::size_t segment) { return "segments[" + std::to_string(segment) + "]"; };
  std::vector<Piece> pieces;
  pieces.reserve(segments.size());
  ElementCount begin;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    auto factors = coefficients(operation, segments[i].config, step, gradient_factor, tile);
    if (!factors) return Error(factors.error()).where(name(i));
    if (segments[i].end <= begin) {
      return Error::invalid_argument(operation)
          .object(name(i) + ".end")
          .reason("not after the end of the previous segment")
          .wanted("more than " + to_string(begin))
          .got(segments[i].end);
    }
    begin = segments[i].end;
    pieces.push_back({begin.value(), *factors});
  }
  if (begin != tile.elements) {
    return Error::invalid_argument(operation)
        .object("segments")
        .reason("the last segment does not end with the tile")
        .wanted(tile.elements)
        .got(begin);
  }
  return detail::update_tile(operation, pieces, step, tile, execution);
}

}  // namespace

Result<AdamOutcome> adam_step(const AdamConfig& config, std::uint64_t step, float gradient_factor,
                              const AdamTile& tile, const AdamExecution& execution) {
  return step_in_one("adam_step", config, step, gradient_factor, tile, execution);
}

Result<AdamOutcome> adam_step_in_segments(std::span<const AdamSegment> segments, std::uint64_t step,
                                          float gradient_factor, const AdamTile& tile,
                                          const AdamExecution& execution) {
  return step_in_segments("adam_step_in_segments", segments, step, gradient_factor, tile, execution);
}

Result<UpdateOutcome> optimizer_step(const Hyperparameters& config, std::uint64_t step, float gradient_factor,
                                     const OptimizerTile& tile, const UpdateExecution& execution) {
  return step_in_one("optimizer_step", config, step, gradient_factor, tile, execution);
}

Result<UpdateOutcome> optimizer_step_in_segments(std::span<const OptimizerSegment> segments,
                                                 std::uint64_t step, float gradient_factor,
                                                 const OptimizerTile& tile,
                                                 const UpdateExecution& execution) {
  return step_in_segments("optimizer_step_in_segments", segments, step, gradient_factor, tile, execution);
}

}  // namespace penstock::cpu_adam
