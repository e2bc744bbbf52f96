#pragma once

#if !defined(__x86_64__)
#include <cfenv>
#endif

namespace penstock::kernels {

/// Sets this thread's floating-point mode to round-to-nearest with subnormals and without traps. The destructor
/// restores the caller's mode. Trainers often run with flush-to-zero, which must not change our results.
///
/// Compilers may move arithmetic across changes of the mode. While this object lives, operands must therefore be
/// loaded from memory and results stored to it.
class DefaultFloatingPointMode {
 public:
  DefaultFloatingPointMode(const DefaultFloatingPointMode&) = delete;
  DefaultFloatingPointMode& operator=(const DefaultFloatingPointMode&) = delete;

  // clang-format off
#if defined(__x86_64__)
  // Only MXCSR: SSE arithmetic uses nothing else, and saving the x87 state too costs 20 times as much.
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
