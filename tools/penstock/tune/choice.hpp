#pragma once

#include <penstock/base/units.hpp>

#include <span>
#include <string>
#include <vector>

namespace penstock::tool {

/// A way to move swap files, and the rates that it came to, by round; all candidates were measured in each.
struct Candidate {
  ByteCount request_size, in_flight;
  std::vector<double> rates;
};

/// How each candidate stands beside the others: the median over the rounds of its rate to the round's mean,
/// so that drift from round to round cancels out; 1 for the best. There is a candidate, and each has a round.
[[nodiscard]] std::vector<double> standings(std::span<const Candidate> candidates);

struct Choice {
  std::size_t index = 0;  ///< of the candidate to configure
  double resolution = 0;  ///< what is lost of a rate unnoticed, such as 0.02
  std::vector<std::size_t>
      as_good;  ///< within the resolution of the best; it and the chosen one are among them
};

/// Of all candidates that stand as well as the best, the one with the least in flight, then with the longest
/// requests: both cost least, and noise must not decide for a corner.
///
/// The resolution is three times spread / sqrt(rounds) of what standings() takes the median of, which is
/// about two standard errors of a difference; that of most candidates, and 1 % at least.
[[nodiscard]] Choice choose(std::span<const Candidate> candidates);

/// Each path's share of the bytes: in proportion to `rates`, which were measured at once. Paths of one device
/// share what it does evenly, whoever was faster by chance. In thousandths of all, each above 0.
[[nodiscard]] std::vector<double> path_weights(std::span<const double> rates,
                                               std::span<const std::string> devices);

}  // namespace penstock::tool
