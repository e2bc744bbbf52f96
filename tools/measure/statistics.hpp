#pragma once

#include <algorithm>
#include <vector>

namespace penstock::measure {

/// `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// (third quartile - first quartile) / median; 0 of equal values.
inline double spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const double difference = values[values.size() * 3 / 4] - values[values.size() / 4];
  return difference == 0 ? 0 : difference / median(values);
}

/// The median and the spread of a series.
struct Center {
  double median = 0, spread = 0;
};
inline Center center(const std::vector<double>& values) {
  return {median(values), spread(values)};
}

/// of[i] / to[i]: the ratio of two contestants in the same round, in which drift from round to round cancels out.
inline std::vector<double> ratios(const std::vector<double>& of, const std::vector<double>& to) {
  std::vector<double> values;
  for (std::size_t i = 0; i < of.size(); ++i) values.push_back(of[i] / to[i]);
  return values;
}

}  // namespace penstock::measure
