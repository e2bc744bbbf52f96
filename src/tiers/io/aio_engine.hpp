#pragma once

#include "tiers/io/refusals.hpp"

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct AioOptions {
  std::uint32_t depth = 64;  ///< maximum number of requests in flight
  TimePoint refusal_time_max =
      tiers::refusal_time_max;  ///< the engine fails when errors of io_getevents last so long
};

/// An engine on Linux AIO. Asynchronous with direct I/O only: without it, submit() blocks until the bytes have moved.
///
/// Errors: unsupported, with the kernel's error, where Linux AIO is missing, filtered or limited by fs.aio-max-nr, and
/// in a build without libaio.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_aio_engine(const AioOptions& options);

}  // namespace penstock::tiers
