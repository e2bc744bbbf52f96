#include "findings.hpp"

#include <algorithm>
#include <string_view>

namespace penstock::tool {

const char* to_string(Finding::State state) {
  switch (state) {
    case Finding::State::used: return "used";
    case Finding::State::unused: return "unused";
    case Finding::State::reduced: return "reduced";
    case Finding::State::unknown: return "unknown";
    case Finding::State::unusable: break;
  }
  return "unusable";
}

namespace {

constexpr std::string_view advice = "try     ";

std::vector<std::string> lines_of(const Error& error) {
  const std::string text = error.message();
  std::vector<std::string> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    begin = std::min(text.find_first_not_of(' ', begin), end);
    lines.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return lines;
}

}  // namespace

std::string one_line(const Error& error) {
  std::string joined;
  for (const std::string& line : lines_of(error)) {
    if (line.starts_with(advice)) continue;
    joined += (joined.empty() ? "" : "; ") + line;
  }
  return joined;
}

std::string advice_of(const Error& error, std::string otherwise) {
  for (const std::string& line : lines_of(error)) {
    if (line.starts_with(advice)) return line.substr(advice.size());
  }
  return otherwise;
}

}  // namespace penstock::tool
