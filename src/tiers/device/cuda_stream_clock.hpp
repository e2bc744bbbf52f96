#pragma once

#include <penstock/tiers/device/stream_clock.hpp>

#include <memory>

namespace penstock::tiers {

/// For streams of CUDA device number `device`. Waits for the device once, to compare its time with the host's. Errors:
/// those of the device.
[[nodiscard]] Result<std::unique_ptr<StreamClock>> make_cuda_stream_clock(int device);

}  // namespace penstock::tiers
