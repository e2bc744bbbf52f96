#include <penstock/base/compute.hpp>

#include <bit>

namespace penstock {

double sum_tree(std::span<const double> partials) {
  if (partials.empty()) return 0.0;
  if (partials.size() == 1) return partials[0];
  const std::size_t half = std::bit_ceil(partials.size()) / 2;
  return sum_tree(partials.first(half)) + sum_tree(partials.subspan(half));
}

}  // namespace penstock
