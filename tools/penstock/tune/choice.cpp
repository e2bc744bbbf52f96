#include "choice.hpp"

#include "measure/statistics.hpp"

#include <algorithm>
#include <cmath>

namespace penstock::tool {

using measure::median;

namespace {

/// The rates of one candidate, each divided by the mean rate of all candidates in its round.
std::vector<double> relative_rates(std::span<const Candidate> candidates, const Candidate& of) {
  std::vector<double> relative;
  for (std::size_t round = 0; round < of.rates.size(); ++round) {
    double total = 0;
    for (const Candidate& candidate : candidates) total += candidate.rates[round];
    relative.push_back(of.rates[round] / total * static_cast<double>(candidates.size()));
  }
  return relative;
}

}  // namespace

std::vector<double> median_relative_rates(std::span<const Candidate> candidates) {
  std::vector<double> all;
  for (const Candidate& candidate : candidates) all.push_back(median(relative_rates(candidates, candidate)));
  const double best = *std::max_element(all.begin(), all.end());
  for (double& relative_rate : all) relative_rate /= best;
  return all;
}

Choice choose(std::span<const Candidate> candidates) {
  std::vector<double> errors;
  for (const Candidate& candidate : candidates) {
    const double rounds = static_cast<double>(candidate.rates.size());
    errors.push_back(3 * measure::spread(relative_rates(candidates, candidate)) / std::sqrt(rounds));
  }
  Choice choice{.resolution = std::max(0.01, median(errors))};

  const std::vector<double> all = median_relative_rates(candidates);
  const auto cheaper = [](const Candidate& one, const Candidate& other) {
    return one.in_flight != other.in_flight ? one.in_flight < other.in_flight
                                            : one.request_size > other.request_size;
  };
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (all[i] < 1 - choice.resolution) continue;
    if (choice.as_good.empty() || cheaper(candidates[i], candidates[choice.index])) choice.index = i;
    choice.as_good.push_back(i);
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
