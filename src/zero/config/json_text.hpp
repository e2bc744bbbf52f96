#pragma once

#include <json/json.h>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero::config {

/// One thing that is wrong with a file. `path` is empty where the text itself is malformed.
struct Problem {
  std::string path;
  std::uint32_t line = 0;  ///< from 1; 0 where no line is to blame
  std::string text;
};

/// Which line a byte of a text stands on.
class LineIndex {
 public:
  explicit LineIndex(std::string_view text);
  [[nodiscard]] std::uint32_t line_of(std::ptrdiff_t offset) const;

 private:
  std::vector<std::ptrdiff_t> line_starts_;
};

/// Parses JSON with comments (`//`, `#`, `/* */`) and trailing commas; duplicate keys are refused. Offsets of
/// values are those of `text`. Appends the first thing that is malformed to
/// `problems`; the value is null then.
[[nodiscard]] Json::Value parse_json(std::string_view text, std::vector<Problem>& problems);

/// Indented by two spaces, a list on one line, numbers as the shortest decimal that is read back as they are.
[[nodiscard]] std::string write_json(const Json::Value& json);

}  // namespace penstock::zero::config
