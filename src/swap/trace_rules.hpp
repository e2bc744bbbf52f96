#pragma once

#include <penstock/base/units.hpp>

#include <algorithm>
#include <cstdint>
#include <string_view>

// What check_trace() and the reader of a trace file refuse.

namespace penstock::swap {

/// Of a tensor, so that the bytes of four million tensors can be added up.
inline constexpr ByteCount trace_tensor_bytes_max(std::uint64_t{1} << 42);

/// In a label or a name: a line break would divide the line of a trace file, and other control characters would be
/// commands to a terminal.
[[nodiscard]] inline bool has_control_character(std::string_view text) {
  return std::any_of(text.begin(), text.end(),
                     [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; });
}

}  // namespace penstock::swap
