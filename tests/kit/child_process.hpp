#pragma once

#include <functional>

namespace penstock::test {

/// Runs `body` in a child process, so that limits and filters that it sets end with it. Returns the body's result, or
/// minus the signal that ended the child. A child that hangs is killed after a minute.
int in_child(const std::function<int()>& body);

/// Makes system call `number` of this process fail with `error` from now on. For use in a child. False if seccomp is not
/// available.
[[nodiscard]] bool refuse_system_call(long number, int error);

/// Gives up the right to lock memory beyond RLIMIT_MEMLOCK, and sets that to `bytes`.
[[nodiscard]] bool limit_locked_memory(unsigned long bytes);

}  // namespace penstock::test
