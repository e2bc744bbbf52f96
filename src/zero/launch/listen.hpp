#pragma once

#include <asio.hpp>

#include <fcntl.h>
#include <cstdint>
#include <string>

namespace penstock::zero {

[[nodiscard]] inline bool is_loopback(const std::string& host) {
  asio::error_code error;
  const auto address = asio::ip::make_address(host, error);
  return host == "localhost" || (!error && address.is_loopback());
}

/// Programs that the process starts do not get the socket.
inline void close_in_children(int descriptor) {
  (void)::fcntl(descriptor, F_SETFD, FD_CLOEXEC);
}

/// Has `acceptor` listen on `port`, or a free one for 0: at `host`, if that is this machine's loopback, else at all its
/// addresses.
[[nodiscard]] inline asio::error_code listen(asio::ip::tcp::acceptor& acceptor, const std::string& host,
                                             std::uint16_t port) {
  using asio::ip::tcp;
  asio::error_code error;
  const bool only_here = is_loopback(host);
  tcp::endpoint at(tcp::v6(), port);
  if (only_here) {
    at = {host == "localhost" ? asio::ip::address_v4::loopback() : asio::ip::make_address(host, error), port};
  }
  acceptor.open(at.protocol(), error);
  if (error && !only_here) {  // without IPv6
    at = {tcp::v4(), port};
    acceptor.open(at.protocol(), error);
  }
  if (error) return error;
  close_in_children(acceptor.native_handle());
  acceptor.set_option(tcp::acceptor::reuse_address(true), error);
  asio::error_code ignored;
  if (!only_here && at.protocol() == tcp::v6()) acceptor.set_option(asio::ip::v6_only(false), ignored);
  if (!error) acceptor.bind(at, error);
  if (!error) acceptor.listen(tcp::acceptor::max_listen_connections, error);
  return error;
}

}  // namespace penstock::zero
