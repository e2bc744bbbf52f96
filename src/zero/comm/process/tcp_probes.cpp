#include "zero/comm/process/tcp_probes.hpp"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <algorithm>
#include <chrono>

namespace penstock::zero {

namespace {

/// Of an idle connection, in `silence_max`.
constexpr int probes = 4;

// Without the options, such as in a sandbox, the kernel's own times are left: the peer is noticed later.
void set(int socket, int level, int option, int value) noexcept {
  (void)::setsockopt(socket, level, option, &value, sizeof value);
}

}  // namespace

void probe_when_idle(int socket, TimePoint silence_max) noexcept {
  const auto interval = std::chrono::duration_cast<std::chrono::seconds>(silence_max / probes).count();
  const int seconds = static_cast<int>(std::clamp<std::int64_t>(interval, 1, 3600));
  set(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(socket, IPPROTO_TCP, TCP_KEEPIDLE, seconds);
  set(socket, IPPROTO_TCP, TCP_KEEPINTVL, seconds);
}

// TCP_USER_TIMEOUT would not do: it also ends a connection whose peer answers, but has no room for more.
TimePoint unanswered_for(int socket) noexcept {
  tcp_info info{};
  socklen_t size = sizeof info;
  if (::getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return TimePoint::zero();
  // The first repetition may be on its way.
  if (info.tcpi_retransmits + info.tcpi_probes < 2) return TimePoint::zero();
  return std::chrono::milliseconds(std::min(info.tcpi_last_ack_recv, info.tcpi_last_data_recv));
}

}  // namespace penstock::zero
