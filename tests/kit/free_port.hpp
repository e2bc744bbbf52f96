#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <utility>

namespace penstock::test {

[[nodiscard]] inline bool bind_to(int descriptor, std::uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return ::bind(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

/// A socket that listens on a free port of this machine.
class Listener {
 public:
  Listener() {
    if (!bind_to(descriptor_, 0) || ::listen(descriptor_, 8) != 0) std::abort();
    sockaddr_in address{};
    socklen_t size = sizeof address;
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

/// A port which, like the one after it, no program of this machine had bound a moment ago. It is none of those that the
/// kernel gives to connections by itself (net.ipv4.ip_local_port_range): tests that run beside this one cannot take it.
[[nodiscard]] inline std::uint16_t free_port() {
  const auto is_free = [](std::uint16_t port) {
    const int descriptor = ::socket(AF_INET, SOCK_STREAM, 0);
    const bool bound = bind_to(descriptor, port);
    ::close(descriptor);
    return bound;
  };
  std::random_device random;
  std::uniform_int_distribution<int> half(5'000, 15'999);
  while (true) {
    const auto port = static_cast<std::uint16_t>(2 * half(random));
    if (is_free(port) && is_free(port + 1)) return port;
  }
}

}  // namespace penstock::test
