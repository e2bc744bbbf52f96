#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdint>
#include <cstdlib>
#include <utility>

namespace penstock::test {

/// A socket that listens on a free port of this machine.
class Listener {
 public:
  Listener() {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(descriptor_, 8) != 0)
      std::abort();
    ::getsockname(descriptor_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;
  void close() {
    if (descriptor_ >= 0) ::close(std::exchange(descriptor_, -1));
  }
  [[nodiscard]] std::uint16_t port() const { return port_; }

 private:
  int descriptor_ = ::socket(AF_INET, SOCK_STREAM, 0);
  std::uint16_t port_ = 0;
};

/// A port on which no program of this machine listened a moment ago.
[[nodiscard]] inline std::uint16_t free_port() {
  return Listener().port();
}

}  // namespace penstock::test
