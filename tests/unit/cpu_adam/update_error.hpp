#pragma once

#include "tile_fixture.hpp"

#include <penstock/cpu_adam/adam.hpp>

#include <cstdint>
#include <functional>
#include <random>
#include <span>
#include <string>
#include <vector>

namespace penstock::test {

using namespace cpu_adam;

using Random = std::mt19937_64;

/// The gradients of a tile, step after step, and the elements whose errors are counted.
struct GradientSeries {
  std::string name;
  std::function<float(Random& random, std::size_t element, std::uint64_t step)> gradient;
  std::function<bool(std::size_t element)> is_counted;
};

/// Noise is normal, with a mean of 0.3 standard deviations: the drift.
[[nodiscard]] GradientSeries noise_with_drift();
/// The same, but one element of each 256 has gradients that are `factor` times as large. Counts the others.
[[nodiscard]] GradientSeries noise_beside_outliers(float factor, std::string name);
/// All series of the table in docs/optimizer.md.
[[nodiscard]] std::vector<GradientSeries> all_series();

/// How far the updates of a state format are from Adam in double, from the same gradients.
struct UpdateError {
  /// The root of the mean square, over elements and steps, of the difference between the changes that a step makes to a
  /// master, divided by that of Adam's changes.
  double rms;
  /// The distance from the first master to the last, in the direction in which Adam moves it, summed over elements and
  /// divided by the sum of Adam's distances; less 1.
  double travel_bias;
};

/// The errors of each kind of tile.
[[nodiscard]] std::vector<UpdateError> update_errors(const GradientSeries& series,
                                                     std::span<const TileKind> kinds, std::size_t elements,
                                                     std::uint64_t steps);

}  // namespace penstock::test
