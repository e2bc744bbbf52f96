#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct AioOptions {
  std::uint32_t depth = 64;  ///< requests in flight at most
};

/// An engine on Linux AIO. Asynchronous with direct I/O only: elsewhere submit blocks until the bytes have
/// moved.
///
/// Probed by what happens: a context is set up, within fs.aio-max-nr.
/// Errors: unsupported, with what the kernel said, where it is missing or filtered; also in a build without
/// libaio.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_aio_engine(const AioOptions& options);

}  // namespace penstock::tiers
