#pragma once

#include <penstock/base/dtype.hpp>

#include <ostream>

namespace penstock {

/// Prints a DType in GoogleTest's messages.
inline void PrintTo(DType dtype, std::ostream* out) {
  *out << to_string(dtype);
}

}  // namespace penstock
