#pragma once

#include "zero/config/config_error.hpp"
#include "zero/config/hjson.hpp"
#include "zero/config/json_text.hpp"

#include <penstock/base/result.hpp>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace penstock::zero::config {

/// Collects the problems of a file in which an unknown key is one.
class StrictReader {
 public:
  StrictReader(const LineIndex& lines, std::vector<Problem>& problems) : lines_(lines), problems_(problems) {}

  void report(const Json::Value& json, const std::string& path, std::string text);
  /// With so many problems, the rest of the file need not be looked at.
  [[nodiscard]] bool is_full() const { return problems_.size() >= 20; }
  [[nodiscard]] std::size_t problem_count() const { return problems_.size(); }
  /// Whether the value is an object; reports the keys that are not `known`.
  bool is_object(const Json::Value& json, const std::string& path, std::span<const std::string_view> known);

 private:
  const LineIndex& lines_;
  std::vector<Problem>& problems_;
};

/// The object in Hjson, or nothing, with a problem.
[[nodiscard]] Json::Value parse_object(std::string_view text, const std::string& wanted,
                                       std::vector<Problem>& problems);

/// What `read` (StrictReader&, const Json::Value&) makes of the object in `text`, in Hjson. `name` stands for the file,
/// which is `what`; `wanted` says what its object has. Errors: invalid_config, with every problem of the file.
template <class Read>
auto read_strictly(const char* operation, const std::string& name, const char* what,
                   const std::string& wanted, std::string_view text, const Read& read)
    -> Result<std::invoke_result_t<Read, StrictReader&, const Json::Value&>> {
  std::vector<Problem> problems;
  const Json::Value root = parse_object(text, wanted, problems);
  if (!problems.empty()) return to_error(operation, name, std::move(problems), what);
  const LineIndex lines(text);
  StrictReader reader(lines, problems);
  auto value = read(reader, root);
  if (!problems.empty()) return to_error(operation, name, std::move(problems), what);
  return value;
}

}  // namespace penstock::zero::config
