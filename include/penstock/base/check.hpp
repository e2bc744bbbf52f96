#pragma once

namespace penstock::detail {

/// Prints `file:line: check failed: expression` to standard error and aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace penstock::detail

/// Guards an invariant of our own code, in release too. Operating failures and misuse at the boundary are
/// Results instead; a caller can never reach one of these with bad input.
#define PENSTOCK_CHECK(condition)                                       \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::penstock::detail::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
