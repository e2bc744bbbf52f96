#pragma once

#include <penstock/base/result.hpp>

#include <asio/error.hpp>

#include <cerrno>
#include <string>
#include <system_error>
#include <utility>

namespace penstock::zero {

/// Whether the process or the machine has run out of descriptors or memory for sockets.
[[nodiscard]] inline bool is_exhausted(const std::error_code& error) {
  const int code = error.value();
  const bool is_of_system =
      error.category() == asio::system_category() || error.category() == std::system_category();
  return is_of_system && (code == EMFILE || code == ENFILE || code == ENOBUFS || code == ENOMEM);
}

/// `error` of the system, with what cannot be done because of it, and what to do where descriptors have run out.
[[nodiscard]] inline Error network_error(const char* operation, const std::string& what,
                                         const std::error_code& error) {
  Error failed = Error(Error::from_errno(operation, error.value()).code(), operation)
                     .reason(what + ": " + error.message());
  if (!is_exhausted(error)) return failed;
  return std::move(failed).advice(
      "raise the limit on open files (ulimit -n): a rank needs about 20, one for each other rank, and rank 0 "
      "two for "
      "each");
}

}  // namespace penstock::zero
