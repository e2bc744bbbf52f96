#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct ThreadPoolOptions {
  std::uint32_t threads = 4;  ///< suffices for requests of 1 MiB; 2 suffice for 4 MiB
  std::uint32_t depth = 64;   ///< maximum number of requests in flight
};

/// An engine that runs pread, pwrite and fdatasync on its own threads. Works on every file system.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_thread_pool_engine(const ThreadPoolOptions& options);

}  // namespace penstock::tiers
