#pragma once

#include <penstock/base/result.hpp>

#include <functional>
#include <thread>

namespace penstock {

/// Starts a thread that runs `body`. `what` names it in the error: "the driver of /mnt/nvme0".
///
/// Errors: no_space, when the kernel refuses, for want of memory or at a limit on threads.
[[nodiscard]] Result<std::thread> start_thread(const char* operation, const std::string& what,
                                               std::function<void()> body);

}  // namespace penstock
