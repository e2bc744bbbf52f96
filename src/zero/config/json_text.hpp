#pragma once

#include <json/json.h>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// One error in a file. `path` is empty if the text itself is malformed.
struct Problem {
  std::string path;
  std::uint32_t line = 0;  ///< from 1; 0 if the error has no line
  std::string text;
};

/// Finds the line of a byte in a text.
class LineIndex {
 public:
  explicit LineIndex(std::string_view text);
  [[nodiscard]] std::uint32_t line_of(std::ptrdiff_t offset) const;

 private:
  std::vector<std::ptrdiff_t> line_starts_;
};

/// Replaces control characters, so that no byte of a file reaches a terminal as one.
[[nodiscard]] std::string printable(std::string text);

/// Prints JSON indented by two spaces, lists on one line, numbers with the fewest digits that are read back unchanged.
[[nodiscard]] std::string write_json(const Json::Value& json);

}  // namespace penstock::zero::config
