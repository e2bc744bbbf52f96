#pragma once

#include <algorithm>
#include <vector>

namespace penstock::bench {

/// `values` is not empty.
inline double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

/// (third quartile - first quartile) / median.
inline double spread(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return (values[values.size() * 3 / 4] - values[values.size() / 4]) / median(values);
}

}  // namespace penstock::bench
