#include "tiers/io/wake_event.hpp"

#include "tiers/io/file_errors.hpp"
#include "tiers/io/interrupted.hpp"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <cstdint>

namespace penstock::tiers {

timespec time_left(TimePoint deadline) noexcept {
  const TimePoint now = Clock::steady().now();
  const TimePoint left = deadline <= now ? TimePoint::zero() : std::min(deadline - now, WakeEvent::wait_max);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(left);
  return {.tv_sec = seconds.count(), .tv_nsec = (left - seconds).count()};
}

Result<void> WakeEvent::open(const char* operation) {
  event_ = OwnedFd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (event_.is_open()) return ok();
  return file_error(operation, "eventfd", errno);
}

void WakeEvent::signal() noexcept {
  pending_.store(true);
  const std::uint64_t one = 1;
  // EAGAIN: the counter is full, and the eventfd is readable anyway.
  (void)repeat_interrupted([&] { return ::write(event_.get(), &one, sizeof one); });
}

void WakeEvent::wait(TimePoint deadline) noexcept {
  const timespec timeout = time_left(deadline);
  pollfd event{.fd = event_.get(), .events = POLLIN, .revents = 0};
  if (::ppoll(&event, usable_ ? 1 : 0, &timeout, nullptr) > 0) drain();
}

void WakeEvent::drain() noexcept {
  std::uint64_t count = 0;
  if (repeat_interrupted([&] { return ::read(event_.get(), &count, sizeof count); }) < 0 && errno != EAGAIN) {
    usable_ = false;  // it stays readable: no wait for it would block any more
  }
}

}  // namespace penstock::tiers
