#pragma once

#include <penstock/base/units.hpp>

#include <optional>

namespace penstock::zero {

/// What a configuration lets FlatResidency do. Elements are those of whole flats.
struct ResidencyLimits {
  ElementCount reduce_bucket{
      500'000'000};                   ///< of the gradients that one collective reduces, unless one has more
  bool overlap = true;                ///< a bucket is reduced while the next one is written
  ElementCount prefetch{50'000'000};  ///< gathers ahead while fewer are gathered and not acquired yet
  ElementCount live_parameters{
      1'000'000'000};  ///< gathered beside what the unit in use and leased units need
  /// Flats whose parameters all have at most so many elements are dropped last, while they have at most
  /// `model_persistence` elements together.
  ElementCount param_persistence, model_persistence;
  /// A gathered flat is dropped unless a unit needs it before the next ones have used so many elements. None: flats
  /// stay while there is room.
  std::optional<ElementCount> reuse_distance;
  bool whole =
      false;  ///< what is gathered stays until the parameters change: stages 0 to 2. There is room for it
};

}  // namespace penstock::zero
