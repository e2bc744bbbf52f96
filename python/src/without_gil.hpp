#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

namespace penstock::python {

/// While it lives, other threads of Python run.
///
/// Python 3.11 to 3.13 end a daemon thread that asks for the GIL while the interpreter ends, by pthread_exit(), which
/// unwinds its stack and aborts the process at the first noexcept function. The thread waits here instead, as 3.14 does it.
class WithoutGil {
 public:
  WithoutGil() : state_(PyEval_SaveThread()) {}
  WithoutGil(const WithoutGil&) = delete;
  WithoutGil& operator=(const WithoutGil&) = delete;
  ~WithoutGil() {
    try {
      PyEval_RestoreThread(state_);
    } catch (abi::__forced_unwind&) {
      for (;;) ::pause();
    }
  }

 private:
  PyThreadState* state_;
};

}  // namespace penstock::python
