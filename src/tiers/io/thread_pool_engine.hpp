#pragma once

#include <penstock/tiers/io/io_engine.hpp>

#include <memory>

namespace penstock::tiers {

struct ThreadPoolOptions {
  std::uint32_t threads = 4;  ///< with requests of 1 MiB; 2 do for 4 MiB
  std::uint32_t depth = 64;   ///< requests in flight at most
};

/// An engine that runs pread, pwrite and fdatasync on threads of its own. Works wherever files do.
[[nodiscard]] Result<std::unique_ptr<IoEngine>> create_thread_pool_engine(const ThreadPoolOptions& options);

}  // namespace penstock::tiers
