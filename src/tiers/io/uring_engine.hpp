#pragma once

#include "tiers/io/refusals.hpp"

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct UringOptions {
  std::uint32_t depth = 64;      ///< maximum number of requests in flight
  bool register_files = true;    ///< avoids a look-up of the file for each request
  bool register_buffers = true;  ///< avoids pinning of pages for each request; limited by RLIMIT_MEMLOCK
  TimePoint refusal_time_max =
      tiers::refusal_time_max;  ///< the engine fails when EAGAIN, ENOMEM, … last so long
};

/// An engine with its own ring (SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them).
///
/// The first thread that calls submit() or reap() owns the ring and must call close() too.
///
/// create() proves that io_uring works by a read through a ring. Requests that the kernel refuses later complete with
/// its errno; IoEngine::failure() then names the error.
///
/// Errors: unsupported, with the kernel's error, where io_uring is missing, disabled or filtered, and in a build
/// without liburing.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions& options);

}  // namespace penstock::tiers
