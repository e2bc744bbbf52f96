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
  /// sockets[r] is connected to rank r; that of this process is empty. Errors: those of the system.
  [[nodiscard]] static Result<std::unique_ptr<SocketPipes>> create(std::vector<OwnedFd> sockets);

  Result<std::size_t> write(std::uint32_t peer, ConstHostSpan bytes) override;
  Result<std::size_t> read(std::uint32_t peer, HostSpan bytes) override;
  void wait(std::span<const Interest> interests, TimePoint at_most) noexcept override;
  void wake() noexcept override { wake_.signal(); }

 private:
  explicit SocketPipes(std::vector<OwnedFd> sockets) : sockets_(std::move(sockets)) {}

  const std::vector<OwnedFd> sockets_;
  tiers::WakeEvent wake_;
  std::vector<pollfd> polled_;
};

}  // namespace penstock::zero
