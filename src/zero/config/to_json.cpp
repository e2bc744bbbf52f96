#include <penstock/zero/config/config.hpp>

#include "zero/config/json_text.hpp"
#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

namespace penstock::zero {

std::string Config::to_json() const {
  const config::Draft draft = config::draft_of(*this);
  Json::Value json;
  for (const config::Key& key : config::schema()) {
    if (!key.field || key.status == config::Status::deprecated) continue;
    const auto value = key.field.get(draft);
    if (value) Json::Path(std::string(key.path)).make(json) = config::write_value(key, value);
  }
  return config::write_json(json);
}

}  // namespace penstock::zero
