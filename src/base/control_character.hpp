#pragma once

#include <cstddef>
#include <string>
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

/// For names of callers and files in what a person reads: control characters but those of `kept` are shown by their
/// numbers, as "\x1b", of those of two bytes the second one.
[[nodiscard]] inline std::string escape_control_characters(std::string_view text,
                                                           std::string_view kept = "\t") {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::size_t length = control_character_at(text, i);
    if (length == 0 || kept.find(text[i]) != std::string_view::npos) {
      out += text[i];
      continue;
    }
    i += length - 1;
    const auto number = static_cast<unsigned char>(text[i]);
    out += "\\x";
    out += digits[number / 16];
    out += digits[number % 16];
  }
  return out;
}

}  // namespace penstock
