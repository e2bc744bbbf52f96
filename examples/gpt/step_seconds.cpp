#include "gpt/step_seconds.hpp"

#include <algorithm>

namespace gpt {

double median_step_seconds(std::vector<double> seconds) {
  if (seconds.size() < 3) return 0;
  seconds.pop_back();
  seconds.erase(seconds.begin());
  std::sort(seconds.begin(), seconds.end());
  const std::size_t middle = seconds.size() / 2;
  return seconds.size() % 2 == 1 ? seconds[middle] : (seconds[middle - 1] + seconds[middle]) / 2;
}

}  // namespace gpt
