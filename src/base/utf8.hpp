#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock {

/// The first byte that no text in UTF-8 has there, or nothing if `text` is one. RFC 3629, section 4.
[[nodiscard]] std::optional<std::size_t> first_not_utf8(std::string_view text);

/// The text with U+FFFD in the place of each such byte.
[[nodiscard]] std::string to_utf8(std::string_view text);

}  // namespace penstock
