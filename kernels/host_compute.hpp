#pragma once

#include <penstock/base/compute.hpp>

#include <memory>

namespace penstock::kernels {

/// Compute on host memory: a device address is a host address, and every operation is enqueued on the
/// stream's HostQueue. Holds no state; safe from any thread.
[[nodiscard]] std::unique_ptr<Compute> make_host_compute();

}  // namespace penstock::kernels
