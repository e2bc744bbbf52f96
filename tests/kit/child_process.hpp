#pragma once

#include <functional>

namespace penstock::test {

/// Runs `body` in a child process, whose limits and filters go with it, and returns what it returned, or
/// minus the signal that ended it. A child that hangs is ended after a minute.
int in_child(const std::function<int()>& body);

/// From now on, system call `number` of this process fails with `error`. For use in a child. False where
/// seccomp is not to be had.
[[nodiscard]] bool refuse_system_call(long number, int error);

/// Gives up the right to lock memory beyond RLIMIT_MEMLOCK, and sets that to `bytes`.
[[nodiscard]] bool limit_locked_memory(unsigned long bytes);

}  // namespace penstock::test
