#include "zero/config/common_settings.hpp"

#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

namespace penstock::zero::config {

namespace {

bool is_of_the_machine(const Key& key) {
  return key.read_by == Consumer::runtime || key.read_by == Consumer::rank ||
         key.path == "penstock.host_budget" || key.path == "penstock.node_budgets";
}

std::string on_one_line(const Json::Value& json) {
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "";
  return Json::writeString(builder, json);
}

}  // namespace

std::vector<Setting> common_settings(const Config& config) {
  const Draft draft = draft_of(config);
  std::vector<Setting> settings;
  for (const Key& key : schema()) {
    if (!key.field || key.status == Status::deprecated || is_of_the_machine(key)) continue;
    if (const auto value = key.field.get(draft))
      settings.push_back({key.path, on_one_line(write_value(key, value))});
  }
  return settings;
}

}  // namespace penstock::zero::config
