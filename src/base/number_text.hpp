#pragma once

#include <cstdio>
#include <string>

namespace penstock {

/// A number in at most 7 significant digits, as many as a float has: "0.001", "-1e-09", "3e+38", "nan".
inline std::string number_text(double number) {
  char text[32];
  std::snprintf(text, sizeof text, "%.7g", number);
  return text;
}

}  // namespace penstock
