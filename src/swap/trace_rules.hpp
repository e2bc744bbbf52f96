#pragma once

#include "base/control_character.hpp"

#include <penstock/base/units.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// What check_trace() and the reader of a trace file refuse, and names that they do not.

namespace penstock::swap {

/// Of a tensor, so that the bytes of four million tensors can be added up.
inline constexpr ByteCount trace_tensor_bytes_max(std::uint64_t{1} << 42);

/// In a label or a name: a line break would divide the line of a trace file, and other control characters would be
/// commands to a terminal.
[[nodiscard]] inline bool has_control_character(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (control_character_at(text, i) > 0) return true;
  return false;
}

/// That of a tensor of a runtime, which may have any name, in a trace.
[[nodiscard]] inline std::string name_in_trace(const std::string& name) {
  return name.empty() ? "unnamed" : escape_control_characters(name, "");
}

}  // namespace penstock::swap
