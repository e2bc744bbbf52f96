#pragma once

#include <vector>

namespace gpt {

/// The median of all steps but the first, which includes the initialisation, and the last; 0 if there are no others.
[[nodiscard]] double median_step_seconds(std::vector<double> seconds);

}  // namespace gpt
