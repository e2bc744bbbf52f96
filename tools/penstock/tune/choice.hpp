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

struct Choice {
  std::size_t index = 0;             ///< of the candidate to configure
  std::size_t best = 0;              ///< of the one with the highest median
  double resolution = 0;             ///< what is lost of a rate unnoticed, such as 0.02
  std::vector<std::size_t> as_good;  ///< within the resolution of the best, which is one of them
};

/// Of all candidates that do as well as the best, the one with the least in flight, then with the longest
/// requests: both cost least, and noise must not decide for a corner.
///
/// Candidates are compared to the best round by round, so that drift cancels out. The resolution is twice the
/// standard error of such a comparison's median (about spread / sqrt(rounds)), that of most candidates, and
/// 1 % at least. There is a candidate, and each has a round.
[[nodiscard]] Choice choose(std::span<const Candidate> candidates);

/// Each path's share of the bytes: in proportion to `rates`, which were measured at once. Paths of one device
/// share what it does evenly, whoever was faster by chance. In thousandths of all, each above 0.
[[nodiscard]] std::vector<double> path_weights(std::span<const double> rates,
                                               std::span<const std::string> devices);

}  // namespace penstock::tool
