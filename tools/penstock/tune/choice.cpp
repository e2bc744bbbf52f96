#include "choice.hpp"

#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::tool {

using measure::median;

Choice choose(std::span<const Candidate> candidates) {
  Choice choice{.resolution = 0.01};
  for (std::size_t i = 1; i < candidates.size(); ++i) {
    if (median(candidates[i].rates) > median(candidates[choice.best].rates)) choice.best = i;
  }
  const Candidate& best = candidates[choice.best];
  std::vector<double> errors;
  for (const Candidate& candidate : candidates) {
    if (&candidate == &best) continue;
    const double rounds = static_cast<double>(candidate.rates.size());
    errors.push_back(2 * measure::spread(measure::ratios(candidate.rates, best.rates)) / std::sqrt(rounds));
  }
  if (!errors.empty()) choice.resolution = std::max(choice.resolution, median(errors));

  choice.index = choice.best;
  const auto cheaper = [](const Candidate& one, const Candidate& other) {
    return one.in_flight != other.in_flight ? one.in_flight < other.in_flight
                                            : one.request_size > other.request_size;
  };
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    const double kept = median(measure::ratios(candidates[i].rates, best.rates));
    if (kept < 1 - choice.resolution) continue;
    choice.as_good.push_back(i);
    if (cheaper(candidates[i], candidates[choice.index])) choice.index = i;
  }
  return choice;
}

std::vector<double> path_weights(std::span<const double> rates, std::span<const std::string> devices) {
  std::vector<double> weights;
  double total = 0;
  for (std::size_t i = 0; i < rates.size(); ++i) {
    double of_device = 0, sharers = 0;
    for (std::size_t j = 0; j < rates.size(); ++j) {
      if (devices[j] != devices[i]) continue;
      of_device += rates[j];
      sharers += 1;
    }
    weights.push_back(of_device / sharers);
    total += weights.back();
  }
  for (double& weight : weights) weight = std::max(0.001, std::round(weight / total * 1000) / 1000);
  return weights;
}

}  // namespace penstock::tool
