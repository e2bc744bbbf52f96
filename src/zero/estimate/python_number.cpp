#include "zero/estimate/python_number.hpp"

#include <cmath>

namespace penstock::zero::estimate {

namespace {

/// a / b, rounded once.
double quotient(WideByteCount a, WideByteCount b) {
  // Compute enough bits of the quotient that only whether the remainder is zero matters for rounding.
  int shift = 0;
  while (a != 0 && (a >> 127) == 0) a <<= 1, ++shift;
  const WideByteCount sticky = a % b != 0 ? 1 : 0;
  return std::ldexp(static_cast<double>((a / b) | sticky), -shift);
}

}  // namespace

WideByteCount PythonNumber::truncated() const {
  if (integral_) return whole_;
  return real_ >= 0x1p128 ? ~WideByteCount{0} : static_cast<WideByteCount>(real_);
}

PythonNumber operator*(PythonNumber a, PythonNumber b) {
  if (a.integral_ && b.integral_) return PythonNumber::integer(a.whole_ * b.whole_);
  return PythonNumber::real(a.to_double() * b.to_double());
}

PythonNumber operator+(PythonNumber a, PythonNumber b) {
  if (a.integral_ && b.integral_) return PythonNumber::integer(a.whole_ + b.whole_);
  return PythonNumber::real(a.to_double() + b.to_double());
}

PythonNumber operator/(PythonNumber a, PythonNumber b) {
  if (a.integral_ && b.integral_) return PythonNumber::real(quotient(a.whole_, b.whole_));
  return PythonNumber::real(a.to_double() / b.to_double());
}

}  // namespace penstock::zero::estimate
