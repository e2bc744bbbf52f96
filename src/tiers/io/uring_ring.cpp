#if PENSTOCK_HAS_LIBURING

#include "tiers/io/uring_ring.hpp"

#include "base/owned_fd.hpp"
#include "tiers/io/interrupted.hpp"

#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <utility>

namespace penstock::tiers {

namespace {

/// Set-up flags, best first. The ring starts disabled: the thread that enables a single-issuer ring owns it, and that
/// must be the driver, not the thread that creates the engine.
constexpr std::array<unsigned, 3> setup_flags = {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN |
                                                     IORING_SETUP_TASKRUN_FLAG | IORING_SETUP_R_DISABLED,
                                                 IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG, 0};

int init_ring(io_uring& ring, unsigned entries, unsigned flags) noexcept {
  io_uring_params parameters{};
  parameters.flags = flags | IORING_SETUP_CLAMP;
  const int result = repeat_refused([&] {
    io_uring_params wanted = parameters;
    return ::io_uring_queue_init_params(entries, &ring, &wanted);
  });
  if (result != 0) return result;
  // Above 2: see OwnedFd. The ring keeps its mappings.
  OwnedFd descriptor(ring.ring_fd);
  const int error = errno;
  if (!descriptor.is_open()) {
    ring.ring_fd = ring.enter_ring_fd = -1;
    ::io_uring_queue_exit(&ring);
    return -error;
  }
  ring.ring_fd = ring.enter_ring_fd = descriptor.release();
  return 0;
}

/// Reads from an eventfd through `ring`. Returns 0 or a negative errno.
int read_through(io_uring& ring, unsigned flags, int event) noexcept {
  if ((flags & IORING_SETUP_R_DISABLED) != 0) {
    if (const int result = enable_ring(ring); result != 0) return result;
  }
  std::uint64_t value = 0;
  ::io_uring_prep_read(::io_uring_get_sqe(&ring), event, &value, sizeof value, 0);
  if (const int submitted = repeat_refused([&] { return ::io_uring_submit(&ring); }); submitted != 1) {
    return std::min(submitted, -1);
  }
  io_uring_cqe* cqe = nullptr;
  if (const int result = repeat_refused([&] { return ::io_uring_wait_cqe(&ring, &cqe); }); result != 0) {
    return result;
  }
  return cqe->res == sizeof value ? 0 : std::min(cqe->res, -1);
}

/// Successful set-up is not sufficient: a seccomp filter may still refuse to enable the ring or to submit, and an old
/// kernel may not support the read. Returns 0 or a negative errno.
int probe_ring(unsigned flags) noexcept {
  const OwnedFd event(::eventfd(1, EFD_CLOEXEC));
  if (!event.is_open()) return -errno;
  io_uring ring{};
  int result = init_ring(ring, 2, flags);
  if (result != 0) return result;
  result = read_through(ring, flags, event.get());
  ::io_uring_queue_exit(&ring);
  return result;
}

}  // namespace

// Makes the system call itself: Debian 12's liburing declares io_uring_enable_rings and does not export it.
int enable_ring(const io_uring& ring) noexcept {
  const long result = repeat_interrupted([&] {
    return ::syscall(__NR_io_uring_register, ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
  });
  return result == 0 ? 0 : -errno;
}

int open_ring(UringRing& ring, unsigned entries) {
  int result = 0;
  for (const unsigned flags : setup_flags) {
    const int refused = std::exchange(result, probe_ring(flags));
    if (result != 0) continue;
    ring.disabled = (flags & IORING_SETUP_R_DISABLED) != 0;
    if (!ring.disabled) ring.note = std::string("no single-issuer ring: ") + std::strerror(-refused);
    return init_ring(ring.ring, entries, flags);
  }
  return result;
}

}  // namespace penstock::tiers

#endif
