#include "zero/comm/process/socket_pipes.hpp"

#include "base/duration_text.hpp"
#include "tiers/io/interrupted.hpp"
#include "zero/comm/process/tcp_probes.hpp"

#include <sys/socket.h>
#include <cerrno>
#include <string>
#include <system_error>

namespace penstock::zero {

namespace {

constexpr const char* operation = "Communicator";

Error ended(std::uint32_t peer, const std::string& why) {
  return Error(ErrorCode::peer_failed, operation)
      .reason("rank " + std::to_string(peer) + " has left or was lost: " + why)
      .advice("look for the first error of that rank, and for the kernel's out-of-memory killer (dmesg)");
}

}  // namespace

Result<std::unique_ptr<SocketPipes>> SocketPipes::create(std::uint32_t rank, std::vector<OwnedFd> sockets,
                                                         TimePoint silence_max) {
  auto pipes = std::unique_ptr<SocketPipes>(new SocketPipes(rank, std::move(sockets), silence_max));
  for (const OwnedFd& socket : pipes->sockets_) probe_when_idle(socket.get(), silence_max);
  PENSTOCK_TRY(pipes->wake_.open(operation));
  return pipes;
}

Result<std::size_t> SocketPipes::write(std::uint32_t peer, ConstHostSpan bytes) {
  const int socket = sockets_[peer].get();
  return count_of(peer, tiers::repeat_interrupted([&] {
                    return ::send(socket, bytes.data(), bytes.size().value(), MSG_NOSIGNAL | MSG_DONTWAIT);
                  }));
}

Result<std::size_t> SocketPipes::read(std::uint32_t peer, HostSpan bytes) {
  const int socket = sockets_[peer].get();
  const ssize_t got = tiers::repeat_interrupted(
      [&] { return ::recv(socket, bytes.data(), bytes.size().value(), MSG_DONTWAIT); });
  if (got == 0) return ended(peer, "it has closed the connection");
  return count_of(peer, got);
}

/// Of what send() or recv() has returned.
Result<std::size_t> SocketPipes::count_of(std::uint32_t peer, ssize_t returned) const {
  if (returned >= 0) return static_cast<std::size_t>(returned);
  if (errno != EAGAIN && errno != EWOULDBLOCK) return ended(peer, std::generic_category().message(errno));
  if (!nothing_moves_) return std::size_t{0};
  const TimePoint unanswered = unanswered_for(sockets_[peer].get());
  if (unanswered < silence_max_) return std::size_t{0};
  return Error(ErrorCode::peer_failed, operation)
      .reason("rank " + std::to_string(rank_) + " and rank " + std::to_string(peer) +
              " cannot reach each other: the host of rank " + std::to_string(peer) +
              " has not answered for " + duration_text(unanswered))
      .advice("look at the network between the hosts of the two ranks");
}

void SocketPipes::wait(std::span<const Interest> interests, TimePoint at_most) noexcept {
  const timespec timeout = tiers::time_left(Clock::steady().now() + at_most);
  polled_.clear();
  for (std::size_t peer = 0; peer < interests.size(); ++peer) {
    const short events =
        static_cast<short>((interests[peer].write ? POLLOUT : 0) | (interests[peer].read ? POLLIN : 0));
    if (events != 0) polled_.push_back({.fd = sockets_[peer].get(), .events = events, .revents = 0});
  }
  if (wake_.usable()) polled_.push_back({.fd = wake_.descriptor(), .events = POLLIN, .revents = 0});
  nothing_moves_ = !wake_.take() && ::ppoll(polled_.data(), polled_.size(), &timeout, nullptr) == 0;
  wake_.drain();
}

}  // namespace penstock::zero
