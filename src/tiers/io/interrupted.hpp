#pragma once

#include <cerrno>
#include <chrono>
#include <thread>

namespace penstock::tiers {

/// How often a system call is made that signals interrupt. Large enough for a profiler's signals during a long call;
/// finite, because a file system or a filter can return EINTR without a signal.
inline constexpr int interruptions_max = 1000;

/// Calls `call`, which returns -1 and sets errno, again while a signal interrupts it. The last result: errno is EINTR
/// only after interruptions_max calls.
template <class Call>
auto repeat_interrupted(const Call& call) noexcept {
  auto result = call();
  for (int count = 1; result == -1 && errno == EINTR && count < interruptions_max; ++count) result = call();
  return result;
}

/// The same for a library's call that returns a negative errno.
template <class Call>
int repeat_interrupted_code(const Call& call) noexcept {
  int result = call();
  for (int count = 1; result == -EINTR && count < interruptions_max; ++count) result = call();
  return result;
}

/// While an engine is tried out: repeats a call that returns a negative errno after EINTR and after refusals that may
/// be short, EAGAIN and EBUSY, for about 20 ms.
template <class Call>
auto repeat_refused(const Call& call) noexcept {
  auto result = call();
  for (int count = 1; (result == -EAGAIN || result == -EBUSY || result == -EINTR) && count < 20; ++count) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    result = call();
  }
  return result;
}

}  // namespace penstock::tiers
