#pragma once

#include <string>

namespace penstock {

/// The build ID that the linker gave to the program or library that contains this function, in hexadecimal digits: two
/// files with one ID have the same code. Empty, if it was linked without one.
[[nodiscard]] std::string build_id();

}  // namespace penstock
