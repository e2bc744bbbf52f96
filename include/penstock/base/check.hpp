#pragma once

namespace penstock::detail {

/// Prints `file:line: check failed: expression` to standard error and aborts.
[[noreturn]] void check_failed(const char* expression, const char* file, int line) noexcept;

}  // namespace penstock::detail

/// Aborts when an invariant of our own code does not hold, in release builds too. Operating failures and misuse by a
/// caller are Results instead: bad input must never fail a check.
#define PENSTOCK_CHECK(condition)                                       \
  do {                                                                  \
    if (!(condition)) [[unlikely]]                                      \
      ::penstock::detail::check_failed(#condition, __FILE__, __LINE__); \
  } while (false)
