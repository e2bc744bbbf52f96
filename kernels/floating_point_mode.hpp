#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace penstock::kernels {

/// Sets this thread's floating-point mode to round-to-nearest with subnormals kept and no traps, and puts the
/// caller's mode back on destruction. Trainers often run with flush-to-zero; our results must not.
class DefaultFloatingPointMode {
 public:
  DefaultFloatingPointMode(const DefaultFloatingPointMode&) = delete;
  DefaultFloatingPointMode& operator=(const DefaultFloatingPointMode&) = delete;

#if defined(__x86_64__)
  // MXCSR alone: SSE arithmetic reads nothing else, and saving the x87 state too costs 20 times as much.
  DefaultFloatingPointMode() noexcept : saved_(_mm_getcsr()) {
    _mm_setcsr(0x1f80);
  }
  ~DefaultFloatingPointMode() {
    _mm_setcsr(saved_);
  }

 private:
  unsigned saved_;
#else
  DefaultFloatingPointMode() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPointMode() {
    std::fesetenv(&saved_);
  }

 private:
  std::fenv_t saved_;
#endif
};

}  // namespace penstock::kernels
