#pragma once

#include "base/control_character.hpp"

#include <penstock/base/units.hpp>
#include <penstock/tiers/store/tensor.hpp>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// What check_trace() and the reader of a trace file refuse, and a name for each tensor that they take.

namespace penstock::swap {

/// Of a tensor, so that the bytes of four million tensors can be added up.
inline constexpr ByteCount trace_tensor_bytes_max(std::uint64_t{1} << 42);

/// Of a trace file.
inline constexpr std::string_view trace_begin = "penstock-trace ";

/// In a label or a name: a line break would divide the line of a trace file, and other control characters would be
/// commands to a terminal.
[[nodiscard]] inline bool has_control_character(std::string_view text) {
  for (std::size_t i = 0; i < text.size(); ++i)
    if (control_character_at(text, i) > 0) return true;
  return false;
}

/// The name that a trace has for a tensor: control characters are escaped, and one without a name has its key.
[[nodiscard]] inline std::string name_in_trace(const tiers::TensorDescription& tensor) {
  return tensor.name.empty() ? "unnamed " + to_string(tensor.key)
                             : escape_control_characters(tensor.name, "");
}

}  // namespace penstock::swap
