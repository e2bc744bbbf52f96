#pragma once

#if !defined(__x86_64__)
#include <cfenv>
#endif

namespace penstock::kernels {

/// Sets this thread's floating-point mode to round-to-nearest with subnormals kept and no traps, and puts the
/// caller's mode back on destruction. Trainers often run with flush-to-zero; our results must not.
///
/// Compilers know nothing of the mode: operands of arithmetic under it are to be loaded from memory, and
/// results stored there, while this object lives.
class DefaultFloatingPointMode {
 public:
  DefaultFloatingPointMode(const DefaultFloatingPointMode&) = delete;
  DefaultFloatingPointMode& operator=(const DefaultFloatingPointMode&) = delete;

  // clang-format off
#if defined(__x86_64__)
  // MXCSR alone: SSE arithmetic reads nothing else, and saving the x87 state too costs 20 times as much.
  DefaultFloatingPointMode() noexcept {
    asm volatile("stmxcsr %0" : "=m"(saved_));
    set(0x1f80);
  }
  ~DefaultFloatingPointMode() { set(saved_); }

 private:
  static void set(unsigned mode) { asm volatile("ldmxcsr %0" : : "m"(mode) : "memory"); }

  unsigned saved_;
#else
  DefaultFloatingPointMode() noexcept {
    std::fegetenv(&saved_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloatingPointMode() { std::fesetenv(&saved_); }

 private:
  std::fenv_t saved_;
#endif
  // clang-format on
};

}  // namespace penstock::kernels
