#pragma once

#include <penstock/swap/runtime_options.hpp>
#include <penstock/zero/config/config.hpp>

#include <chrono>
#include <filesystem>

namespace penstock::zero {

/// How a swap file in `directory` is used with this configuration. `weight` 0: measured.
inline swap::PathOptions path_options(const Config& config, const std::filesystem::path& directory,
                                      double weight) {
  return {.directory = directory,
          .weight = weight,
          .request_max = config.aio_block_size,
          .in_flight_max = config.aio_block_size * config.aio_queue_depth,
          .deadline = std::chrono::seconds(config.penstock.io_deadline_seconds),
          .engine = config.penstock.io_engine};
}

}  // namespace penstock::zero
