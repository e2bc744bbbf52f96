#include <penstock/zero/config/config.hpp>

#include "zero/config/json_text.hpp"
#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

namespace penstock::zero {

namespace {

/// The member of a nested object at a dotted path.
Json::Value& at_path(Json::Value& root, std::string_view path) {
  const std::size_t dot = path.find('.');
  Json::Value& member = root[std::string(path.substr(0, dot))];
  return dot == std::string_view::npos ? member : at_path(member, path.substr(dot + 1));
}

}  // namespace

std::string Config::to_json() const {
  const config::Draft draft = config::draft_of(*this);
  Json::Value json;
  for (const config::Key& key : config::schema()) {
    if (!key.field || key.status == config::Status::deprecated) continue;
    const auto value = key.field.get(draft);
    if (value) at_path(json, key.path) = config::write_value(key, value);
  }
  return config::write_json(json);
}

}  // namespace penstock::zero
