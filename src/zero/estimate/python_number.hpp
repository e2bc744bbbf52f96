#pragma once

#include "zero/estimate/estimate.hpp"

#include <cstdint>

namespace penstock::zero::estimate {

/// A number as Python computes with it: an exact integer, or a double as soon as a double takes part.
/// Never negative. Integers stay below 2^128, the callers' bounds see to that.
class PythonNumber {
 public:
  static PythonNumber integer(WideByteCount value) { return {true, value, 0}; }
  static PythonNumber real(double value) { return {false, 0, value}; }

  /// Correctly rounded, as Python's float(int) is.
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
