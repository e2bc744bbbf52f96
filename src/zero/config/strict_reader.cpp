#include "zero/config/strict_reader.hpp"

#include "zero/config/nearest.hpp"
#include "zero/config/value.hpp"

#include <algorithm>

namespace penstock::zero::config {

namespace {
std::string list_of(std::span<const std::string_view> names) {
  std::string list;
  for (const std::string_view name : names) list.append(list.empty() ? "" : ", ").append(name);
  return list;
}
}  // namespace

void StrictReader::report(const Json::Value& json, const std::string& path, std::string text) {
  if (is_full()) return;
  problems_.push_back({.path = path, .line = lines_.line_of(json.getOffsetStart()), .text = std::move(text)});
}

bool StrictReader::is_object(const Json::Value& json, const std::string& path,
                             std::span<const std::string_view> known) {
  if (!json.isObject()) {
    report(json, path, "wanted an object, got " + (json.isNull() ? "nothing" : shown(json)));
    return false;
  }
  for (const std::string& name : json.getMemberNames()) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    const std::vector<std::string_view> names(known.begin(), known.end());
    const std::string_view nearest = nearest_spelling(name, names);
    report(json[name], printable(path.empty() ? name : path + "." + name),
           nearest.empty() ? "unknown key; wanted one of " + list_of(known)
                           : "unknown key; did you mean \"" + std::string(nearest) + "\"?");
  }
  return true;
}

Json::Value parse_object(std::string_view text, const std::string& wanted, std::vector<Problem>& problems) {
  if (const auto nul = text.find('\0'); nul != text.npos) {
    problems.push_back({.text = "byte " + std::to_string(nul) + " is NUL: it is no text"});
    return {};
  }
  Json::Value root = parse_hjson(text, problems);
  if (problems.empty() && !root.isObject()) problems.push_back({.text = "wanted an object with " + wanted});
  return root;
}

}  // namespace penstock::zero::config
