#pragma once

#include <cstdio>
#include <exception>

namespace penstock::measure {

/// Runs the body of main() and returns its exit status, or 1 with a message on standard error: after an exception, and
/// where standard output could not be written, because the file system is full or the stream is closed.
///
/// A body that printed nothing may succeed with a closed standard output.
template <class Body>
int run_main(const Body& body) {
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
