#pragma once

namespace penstock::test {

// Sanitizers of this build. Some tests cannot run under one: of memory that the process has, of calls that its runtime
// makes too, of system calls and descriptors that it needs itself.
#if defined(__SANITIZE_ADDRESS__)
inline constexpr bool address_sanitizer = true;  // the preset has UndefinedBehaviorSanitizer too
#else
inline constexpr bool address_sanitizer = false;
#endif
#if defined(__SANITIZE_THREAD__)
inline constexpr bool thread_sanitizer = true;
#else
inline constexpr bool thread_sanitizer = false;
#endif
inline constexpr bool any_sanitizer = address_sanitizer || thread_sanitizer;

}  // namespace penstock::test
