#include "zero/config/json_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>

namespace penstock::zero::config {

namespace {

std::string write_scalar(const Json::Value& json) {
  if (json.type() == Json::realValue) {
    std::array<char, 32> digits{};
    return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), json.asDouble()).ptr};
  }
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  return Json::writeString(writer, json);
}

std::string write(const Json::Value& json, const std::string& indentation) {
  if (!json.isObject() && !json.isArray()) return write_scalar(json);
  if (json.empty()) return json.isArray() ? "[]" : "{}";
  const std::string inner = indentation + "  ";
  std::string text;
  for (auto member = json.begin(); member != json.end(); ++member) {
    if (!text.empty()) text += json.isArray() ? ", " : ",";
    if (json.isObject()) text.append("\n").append(inner).append(write_scalar(member.key())).append(": ");
    text += write(*member, inner);
  }
  return json.isArray() ? "[" + text + "]" : "{" + text + "\n" + indentation + "}";
}

}  // namespace

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

std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, '?');
  return text;
}

std::string write_json(const Json::Value& json) {
  return write(json, "");
}

LineIndex::LineIndex(std::string_view text) : line_starts_{0} {
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') line_starts_.push_back(static_cast<std::ptrdiff_t>(i) + 1);
  }
}

std::uint32_t LineIndex::line_of(std::ptrdiff_t offset) const {
  const auto after = std::upper_bound(line_starts_.begin(), line_starts_.end(), offset);
  return static_cast<std::uint32_t>(after - line_starts_.begin());
}

}  // namespace penstock::zero::config
