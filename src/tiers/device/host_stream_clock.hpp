#pragma once

#include <penstock/tiers/device/stream_clock.hpp>

#include <memory>

namespace penstock::tiers {

/// For streams of a HostDevice.
[[nodiscard]] std::unique_ptr<StreamClock> make_host_stream_clock();

}  // namespace penstock::tiers
