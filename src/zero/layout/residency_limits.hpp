#pragma once

#include <penstock/base/units.hpp>

namespace penstock::zero {

/// What a configuration lets FlatResidency do. Elements are those of whole flats.
struct ResidencyLimits {
  ElementCount reduce_bucket{
      500'000'000};                   ///< of the gradients that one collective reduces, unless one has more
  bool overlap = true;                ///< a bucket is reduced while the next one is written
  ElementCount prefetch{50'000'000};  ///< gathers ahead while fewer are gathered and not acquired yet
  ElementCount live_parameters{
      1'000'000'000};  ///< gathered beside what the unit in use and leased units need
  bool whole =
      false;  ///< what is gathered stays until the parameters change: stages 0 to 2. There is room for it
};

}  // namespace penstock::zero
