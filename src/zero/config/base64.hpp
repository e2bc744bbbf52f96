#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace penstock::zero::config {

/// Decodes base64 of the alphabet for URLs and file names, padded with `=`: RFC 4648, section 5. Nothing if it is none.
[[nodiscard]] std::optional<std::string> decode_base64_url(std::string_view text);

}  // namespace penstock::zero::config
