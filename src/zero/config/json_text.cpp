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
