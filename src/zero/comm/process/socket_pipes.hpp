#pragma once

#include "base/owned_fd.hpp"
#include "tiers/io/wake_event.hpp"
#include "zero/comm/process/peer_pipes.hpp"

#include <penstock/base/result.hpp>

#include <poll.h>
#include <memory>
#include <utility>
#include <vector>

namespace penstock::zero {

/// Streams of bytes on connected stream sockets.
class SocketPipes final : public PeerPipes {
 public:
  /// sockets[r] is connected to rank r; that of this process, `rank`, is empty. A peer whose host has not answered for
  /// `silence_max` is lost: peer_failed. Errors: those of the system.
  [[nodiscard]] static Result<std::unique_ptr<SocketPipes>> create(std::uint32_t rank,
                                                                   std::vector<OwnedFd> sockets,
                                                                   TimePoint silence_max);

  Result<std::size_t> write(std::uint32_t peer, ConstHostSpan bytes) override;
  Result<std::size_t> read(std::uint32_t peer, HostSpan bytes) override;
  void wait(std::span<const Interest> interests, TimePoint at_most) noexcept override;
  void wake() noexcept override { wake_.signal(); }

 private:
  SocketPipes(std::uint32_t rank, std::vector<OwnedFd> sockets, TimePoint silence_max)
      : rank_(rank), sockets_(std::move(sockets)), silence_max_(silence_max) {}
  [[nodiscard]] Result<std::size_t> count_of(std::uint32_t peer, ssize_t returned) const;

  const std::uint32_t rank_;
  const std::vector<OwnedFd> sockets_;
  const TimePoint silence_max_;
  bool nothing_moves_ =
      false;  // the last wait() has returned because its time was up, at most WakeEvent::wait_max
  tiers::WakeEvent wake_;
  std::vector<pollfd> polled_;
};

}  // namespace penstock::zero
