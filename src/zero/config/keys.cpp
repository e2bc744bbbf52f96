#include <penstock/zero/config/config.hpp>

#include "zero/config/json_text.hpp"
#include "zero/config/schema.hpp"
#include "zero/config/value.hpp"

namespace penstock::zero {

namespace {

using config::Consumer;
using config::Key;
using config::Status;

std::string_view to_string(Status status) {
  switch (status) {
    case Status::supported: return "supported";
    case Status::deprecated: return "deprecated";
    case Status::no_effect: return "no effect";
    case Status::only_default: return "only the default";
    case Status::removed: return "removed";
  }
  return "unknown";
}

std::string_view to_string(Consumer consumer) {
  switch (consumer) {
    case Consumer::none: return "";
    case Consumer::plan: return "memory plan";
    case Consumer::runtime: return "runtime";
    case Consumer::step: return "optimizer step";
    case Consumer::engine: return "engine";
    case Consumer::rank: return "rank";
    case Consumer::trainer: return "trainer";
  }
  return "unknown";
}

std::string default_of(const Key& key) {
  if (!key.unset.empty()) return std::string(key.unset);
  if (key.kind == config::Kind::feature && key.fallback.empty()) return "{}";
  if (!key.field) return std::string(key.fallback);
  return config::write_json(config::write_value(key, key.field.get(config::Draft())));
}

}  // namespace

std::vector<ConfigKey> config_keys() {
  std::vector<ConfigKey> keys;
  for (const Key& key : config::schema()) {
    if (key.kind == config::Kind::block && key.status == Status::supported) continue;
    ConfigKey& row = keys.emplace_back(ConfigKey{.path = std::string(key.path),
                                                 .status = std::string(to_string(key.status)),
                                                 .read_by = std::string(to_string(key.read_by)),
                                                 .help = std::string(key.help),
                                                 .bytes = std::string(key.bytes)});
    for (const config::Alias& alias : config::aliases()) {
      if (alias.stands_for == key.path) row.aliases.emplace_back(alias.path);
    }
    if (key.status == Status::removed) continue;
    row.takes = config::what_it_takes(key);
    row.default_value = default_of(key);
  }
  return keys;
}

}  // namespace penstock::zero
