#pragma once

#include <penstock/base/units.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::tool {

/// I/O settings and their measured rates, by round. All candidates are measured in every round.
struct Candidate {
  ByteCount request_size, in_flight;
  std::vector<double> rates;
};

/// The relative rate of each candidate: the median over the rounds of its rate divided by the round's mean, scaled so
/// that the best has 1. Drift from round to round cancels out. Needs at least one candidate and one round.
[[nodiscard]] std::vector<double> median_relative_rates(std::span<const Candidate> candidates);

struct Choice {
  std::size_t index = 0;  ///< the candidate to configure
  double resolution =
      0;  ///< the relative difference of rates below which candidates count as equal, such as 0.02
  std::vector<std::size_t>
      as_good;  ///< the candidates within the resolution of the best, including the best and the chosen one
};

/// Chooses among the candidates within the resolution of the best: the one with the fewest bytes in flight, then with
/// the longest requests. These cost least memory and CPU time, and noise cannot select an extreme setting.
///
/// The resolution is three times spread / sqrt(rounds) of a candidate's relative rates, about two standard errors of a
/// difference. The median over the candidates is used, and at least 1 %.
[[nodiscard]] Choice choose(std::span<const Candidate> candidates);

/// Each path's share of the bytes, in proportion to `rates`, which were measured concurrently. Paths on one device
/// share its rate evenly. Rounded to thousandths of the total, each above 0.
[[nodiscard]] std::vector<double> path_weights(std::span<const double> rates,
                                               std::span<const std::string> devices);

}  // namespace penstock::tool
