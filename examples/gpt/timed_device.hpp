#pragma once

#include "gpt/timeline.hpp"

#include <penstock/tiers/io/io_engine.hpp>
#include <penstock/zero/rank.hpp>

#include <memory>

namespace gpt {

/// Makes the copies of an accelerator's device, its elementwise operations and its updates spans of the timeline. That
/// is shared, because what a device or a disk does not finish may outlive the rank.
[[nodiscard]] penstock::Result<penstock::zero::Accelerator> time_operations(
    penstock::zero::Accelerator accelerator, std::shared_ptr<Timeline> timeline);

/// Makes a track of a path's engine: a span lasts from a request that finds no other in flight to the time when none
/// is.
[[nodiscard]] std::unique_ptr<penstock::tiers::IoEngine> time_requests(
    std::unique_ptr<penstock::tiers::IoEngine> engine, std::shared_ptr<Timeline> timeline,
    std::uint32_t track);

}  // namespace gpt
