#pragma once

#include <penstock/base/time.hpp>

namespace penstock::zero {

/// Has the kernel probe a TCP connection in which nothing moves, so that unanswered_for() can tell whether the peer's
/// host is still there: several times in `silence_max`, at most once a second.
void probe_when_idle(int socket, TimePoint silence_max) noexcept;

/// How long the peer's host has answered neither bytes nor probes, which the kernel has repeated. Zero where it
/// answers, also if it takes no bytes now, and for sockets other than TCP's.
[[nodiscard]] TimePoint unanswered_for(int socket) noexcept;

}  // namespace penstock::zero
