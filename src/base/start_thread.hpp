#pragma once

#include <penstock/base/result.hpp>

#include <functional>
#include <thread>

namespace penstock {

/// The limits at which the kernel refuses a thread; its stack takes address space.
inline constexpr char thread_limits[] =
    "processes and threads (ulimit -u, pids.max of the container) or on address space (ulimit -v)";

/// Starts a thread that runs `body`. `what` names it in the error: "the driver of /mnt/nvme0".
///
/// Errors: no_space, when the kernel refuses, for want of memory or at one of thread_limits.
[[nodiscard]] Result<std::thread> start_thread(const char* operation, const std::string& what,
                                               std::function<void()> body);

}  // namespace penstock
