#include "base/utf8.hpp"

#include <algorithm>

namespace penstock {

std::optional<std::size_t> first_not_utf8(std::string_view text) {
  const auto is_between = [&](std::size_t at, unsigned least, unsigned most) {
    return at < text.size() && least <= static_cast<unsigned char>(text[at]) &&
           static_cast<unsigned char>(text[at]) <= most;
  };
  for (std::size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    // No longer form than needed, no half of a surrogate pair, nothing above U+10FFFF: by the second byte.
    const unsigned least = lead == 0xe0   ? 0xa0
                           : lead == 0xf0 ? 0x90
                                          : 0x80,
                   most = lead == 0xed   ? 0x9f
                          : lead == 0xf4 ? 0x8f
                                         : 0xbf;
    const std::size_t size = lead < 0x80   ? 1
                             : lead < 0xc2 ? 0
                             : lead < 0xe0 ? 2
                             : lead < 0xf0 ? 3
                             : lead < 0xf5 ? 4
                                           : 0;
    if (size == 0 || (size > 1 && !is_between(i + 1, least, most))) return i;
    for (std::size_t k = 2; k < size; ++k) {
      if (!is_between(i + k, 0x80, 0xbf)) return i;
    }
    i += size;
  }
  return std::nullopt;
}

std::string to_utf8(std::string_view text) {
  std::string valid;
  while (!text.empty()) {
    const std::size_t length = first_not_utf8(text).value_or(text.size());
    valid += text.substr(0, length);
    if (length < text.size()) valid += "\xEF\xBF\xBD";
    text.remove_prefix(std::min(length + 1, text.size()));
  }
  return valid;
}

}  // namespace penstock
