#pragma once

#include "zero/estimate/estimate.hpp"

#include <cstdint>

namespace penstock::zero::estimate {

/// A number with Python's arithmetic: an exact integer, or a double if an operand is a double. Never negative. The
/// callers' bounds keep integers below 2^128.
class PythonNumber {
 public:
  static PythonNumber integer(WideByteCount value) { return {true, value, 0}; }
  static PythonNumber real(double value) { return {false, 0, value}; }

  /// Correctly rounded, like Python's float(int).
  [[nodiscard]] double to_double() const { return integral_ ? static_cast<double>(whole_) : real_; }
  /// int(): towards zero. A double of 2^128 or more gives the largest value.
  [[nodiscard]] WideByteCount truncated() const;

  friend PythonNumber operator*(PythonNumber a, PythonNumber b);
  friend PythonNumber operator+(PythonNumber a, PythonNumber b);
  /// True division: a double, correctly rounded from the exact quotient of two integers.
  friend PythonNumber operator/(PythonNumber a, PythonNumber b);
  /// max(a, b): a, if they are equal.
  [[nodiscard]] static PythonNumber max(PythonNumber a, PythonNumber b) {
    return b.to_double() > a.to_double() ? b : a;
  }

 private:
  PythonNumber(bool integral, WideByteCount whole, double real)
      : whole_(whole), real_(real), integral_(integral) {}
  WideByteCount whole_;
  double real_;
  bool integral_;
};

}  // namespace penstock::zero::estimate
