#pragma once

#include "swap/runtime_internals.hpp"

#include <penstock/swap/runtime.hpp>

namespace penstock::swap {

/// What a parked runtime has: a lease of all host memory, whose pages are given back. No tensor is in it then, and none
/// can be loaded.
struct Runtime::Parking {
  tiers::TensorId memory{};
  Lease lease;
  RuntimeInternals::GivenBack given_back;
};

}  // namespace penstock::swap
