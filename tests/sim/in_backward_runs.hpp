#pragma once

#include "kit/cluster.hpp"

#include <cstdint>

namespace penstock::zero::test {

/// A run with penstock.update_in_backward.
inline RunOptions in_backward(std::uint32_t ranks, OffloadDevice tier) {
  RunOptions options{.ranks = ranks, .model = deep_model()};
  options.config.gradient_clipping = 0;
  options.config.offload_param.device = options.config.offload_optimizer.device = tier;
  options.config.penstock.update_in_backward = true;
  return options;
}

/// The same run without it.
inline RunOptions after_it(RunOptions options) {
  options.config.penstock.update_in_backward = false;
  return options;
}

}  // namespace penstock::zero::test
