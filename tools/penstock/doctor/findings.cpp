#include "findings.hpp"

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

std::string one_line(const Error& error) {
  const std::string text = error.message();
  std::string line;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    begin = std::min(text.find_first_not_of(' ', begin), end);
    if (!line.empty()) line += "; ";
    line.append(text, begin, end - begin);
    begin = end + 1;
  }
  return line;
}

}  // namespace penstock::tool
