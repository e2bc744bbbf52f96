#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct UringOptions {
  std::uint32_t depth = 64;      ///< requests in flight at most
  bool register_files = true;    ///< spares the kernel a look-up for each request
  bool register_buffers = true;  ///< spares it pinning pages for each request; RLIMIT_MEMLOCK may refuse
};

/// An engine on a ring of its own (SINGLE_ISSUER and DEFER_TASKRUN where the kernel has them).
///
/// The thread that first submits or reaps owns the ring, close() included.
/// Probed by what happens: a ring is set up and a read sent through it. Should the kernel refuse requests
/// later, they complete with its errno.
/// Errors: unsupported, with what the kernel said, where io_uring is missing, disabled or filtered;
/// also in a build without liburing.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_uring_engine(const UringOptions& options);

}  // namespace penstock::tiers
