#pragma once

#include <unistd.h>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <system_error>

namespace penstock::measure {

namespace detail {

/// Ends the process with status 1 and one message, whichever threads call it. Allocates nothing.
[[noreturn]] inline void exit_with(const char* cause, const char* advice) noexcept {
  static std::atomic_flag printed;
  while (printed.test_and_set()) ::pause();  // another thread ends the process
  for (const char* text : {"error: ", cause, "\n  try     ", advice, "\n"}) {
    (void)!::write(STDERR_FILENO, text, std::strlen(text));
  }
  ::_exit(1);
}

[[noreturn]] inline void out_of_memory() {
  exit_with("out of memory",
            "free memory, raise the limits on it (ulimit -v, memory.max), or use smaller sizes");
}

/// What a library's thread threw and nothing caught. Anything but a lack of resources is a defect of this program.
[[noreturn]] inline void on_terminate() {
  try {
    if (const auto thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    out_of_memory();
  } catch (const std::system_error& error) {
    exit_with(error.what(),
              "raise the limits on threads and processes (ulimit -u, pids.max of the container)");
  } catch (...) {
  }
  std::abort();
}

}  // namespace detail

/// Runs the body of main() and returns its exit status, or 1 with a message on standard error: after an exception, for
/// want of memory or threads in any thread, and where standard output could not be written, because the file system is
/// full or the stream is closed.
///
/// A body that printed nothing may succeed with a closed standard output. Ignores SIGXFSZ, so that a write beyond
/// RLIMIT_FSIZE is an error.
template <class Body>
int run_main(const Body& body) {
  std::signal(SIGXFSZ, SIG_IGN);
  std::set_new_handler(detail::out_of_memory);
  std::set_terminate(detail::on_terminate);
  int status = 1;
  try {
    status = body();
  } catch (const std::exception& error) {
    std::fprintf(stderr, "error: %s\n", error.what());
  }
  // ferror: a buffer that could not be written earlier is lost, and a later flush may succeed.
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) {
    std::fprintf(stderr, "error: standard output cannot be written\n");
    return status == 0 ? 1 : status;
  }
  return status;
}

}  // namespace penstock::measure
