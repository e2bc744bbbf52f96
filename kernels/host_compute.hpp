#pragma once

#include <penstock/base/compute.hpp>

#include <memory>

namespace penstock::kernels {

/// Creates the Compute of host memory: a device address is a host address, and every operation is enqueued on the
/// stream's HostQueue. Stateless; safe from any thread.
[[nodiscard]] std::unique_ptr<Compute> make_host_compute();

}  // namespace penstock::kernels
