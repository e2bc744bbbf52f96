#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct ThreadPoolOptions {
  std::uint32_t threads =
      4;  ///< suffices for requests of 1 MiB; 2 suffice for 4 MiB. One more runs reads only
  std::uint32_t depth = 64;  ///< maximum number of requests in flight
};

/// An engine that runs pread, pwrite and fdatasync on its own threads. Works on every file system. Writes and flushes
/// never occupy all threads, so that reads complete beside writes that hang.
///
/// Errors: invalid_argument, for zero threads, more than 256, or a depth of zero; no_space, where fewer than two
/// threads can be started. With fewer than requested it works, and notes() says so.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_thread_pool_engine(const ThreadPoolOptions& options);

}  // namespace penstock::tiers
