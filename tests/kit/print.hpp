#pragma once

#include <penstock/base/dtype.hpp>

#include <ostream>

namespace penstock {

/// How GoogleTest shows a DType.
inline void PrintTo(DType dtype, std::ostream* out) {
  *out << to_string(dtype);
}

}  // namespace penstock
