#pragma once

#include <cstdint>
#include <functional>

namespace penstock::test {

/// Runs `body` in a child process, so that limits and filters that it sets end with it. Returns the body's result, or
/// minus the signal that ended the child. A child that hangs is killed after a minute.
int in_child(const std::function<int()>& body);

/// Makes system call `number` of this process fail with `error` from now on. For use in a child. False if seccomp is
/// not available.
[[nodiscard]] bool refuse_system_call(long number, int error);

/// The same, but the first `made` calls are made, only the next `count` fail, and later ones are made. The filter
/// concerns the calling thread and the threads that it starts, and a thread of this process decides. Call once per
/// child and before the process needs that system call in two threads at a time.
[[nodiscard]] bool refuse_system_call_times(long number, int error, unsigned count, unsigned made = 0);

/// The same as refuse_system_call(), but only calls that have all bits of `mask` set in argument `argument` fail.
[[nodiscard]] bool refuse_system_call_with(long number, unsigned argument, std::uint32_t mask, int error);

/// Makes system call `number` of the calling thread, and of the threads that it starts, not return from now on. For use
/// in a child: its end ends the calls.
[[nodiscard]] bool hang_system_call(long number);

/// Gives up the right to lock memory beyond RLIMIT_MEMLOCK, and sets that to `bytes`.
[[nodiscard]] bool limit_locked_memory(unsigned long bytes);

}  // namespace penstock::test
