#pragma once

#include <cstddef>
#include <string_view>

namespace penstock {

/// How many bytes the control character has that begins there in UTF-8, which a terminal may obey: one below U+0020,
/// U+007F, or one from U+0080 to U+009F. 0: none begins there.
[[nodiscard]] inline std::size_t control_character_at(std::string_view text, std::size_t place) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(place) < 0x20 || byte(place) == 0x7f) return 1;
  return byte(place) == 0xc2 && place + 1 < text.size() && byte(place + 1) >= 0x80 && byte(place + 1) < 0xa0
             ? 2
             : 0;
}

}  // namespace penstock
