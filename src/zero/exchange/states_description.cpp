#include "zero/exchange/states_description.hpp"

#include "zero/config/json_text.hpp"
#include "zero/estimate/layout_file.hpp"

#include <json/json.h>
#include <algorithm>
#include <charconv>
#include <iterator>
#include <memory>

namespace penstock::zero::exchange {

namespace {

constexpr const char* operation = "StatesDescription::from_metadata";
constexpr const char *version = "1", *commit_key = "penstock.commit";
constexpr cpu_adam::Optimizer optimizers[] = {
    cpu_adam::Optimizer::adam,
    cpu_adam::Optimizer::lion,
    cpu_adam::Optimizer::adagrad,
    cpu_adam::Optimizer::muon,
    cpu_adam::Optimizer::custom_no_moments,
    cpu_adam::Optimizer::custom_one_moment,
    cpu_adam::Optimizer::custom_two_moments,
};

std::string compact(const Json::Value& json) {
  Json::StreamWriterBuilder writer;
  writer["indentation"] = "";
  writer["emitUTF8"] = true;
  writer["precision"] = 17;
  return Json::writeString(writer, json);
}

Json::Value json_of(const OptimizerGroup& group) {
  Json::Value json;
  json["frozen"] = group.frozen;
  json["use_muon"] = group.use_muon;
  json["learning_rate_factor"] = group.learning_rate_factor;
  if (group.betas) {
    for (const double beta : *group.betas) json["betas"].append(beta);
  }
  if (group.epsilon) json["epsilon"] = *group.epsilon;
  if (group.weight_decay) json["weight_decay"] = *group.weight_decay;
  return json;
}

/// Reads the values of one file's metadata.
class Reader {
 public:
  Reader(const std::map<std::string, std::string>& metadata, const std::string& file)
      : metadata_(metadata), file_(file) {}

  [[nodiscard]] Error refuse(const std::string& key, std::string wanted) const {
    const auto found = metadata_.find(key);
    return Error::invalid_argument(operation)
        .object(file_ + ", metadata " + key)
        .wanted(std::move(wanted))
        .got(found == metadata_.end() ? "nothing" : shown(found->second))
        .advice("give files that penstock export --states or scripts/convert_deepspeed wrote");
  }

  Result<std::string> text(const std::string& key) const {
    const auto found = metadata_.find(key);
    if (found == metadata_.end()) return refuse(key, "a text");
    return found->second;
  }

  Result<std::uint64_t> count(const std::string& key) const {
    PENSTOCK_TRY_ASSIGN(const std::string digits, text(key));
    std::uint64_t number = 0;
    const auto parsed = std::from_chars(digits.data(), digits.data() + digits.size(), number);
    if (parsed.ec != std::errc() || parsed.ptr != digits.data() + digits.size())
      return refuse(key, "a whole number");
    return number;
  }

  Result<Json::Value> json(const std::string& key) const {
    PENSTOCK_TRY_ASSIGN(const std::string value, text(key));
    Json::CharReaderBuilder builder;
    Json::CharReaderBuilder::strictMode(&builder.settings_);
    builder["stackLimit"] = 8;
    const std::unique_ptr<Json::CharReader> reader(builder.newCharReader());
    Json::Value root;
    try {
      if (reader->parse(value.data(), value.data() + value.size(), &root, nullptr)) return root;
    } catch (const Json::Exception&) {  // nested too deep
    }
    return refuse(key, "JSON");
  }

 private:
  static std::string shown(const std::string& text) {
    constexpr std::size_t most = 80;
    return config::printable(text.size() <= most ? text : text.substr(0, most - 3) + "...");
  }

  const std::map<std::string, std::string>& metadata_;
  const std::string& file_;
};

constexpr const char* groups_key = "penstock.groups";
constexpr const char* loss_scaler_key = "penstock.loss_scaler";

bool has_number(const Json::Value& json, const char* key) {
  return !json.isMember(key) || json[key].isNumeric();
}

Result<OptimizerGroup> group_of(const Json::Value& json, const Reader& reader) {
  const auto wrong = [&] {
    return reader.refuse(groups_key,
                         "a list of objects with frozen, use_muon, learning_rate_factor, and "
                         "perhaps betas, epsilon and weight_decay");
  };
  if (!json.isObject() || !json["frozen"].isBool() || !json["use_muon"].isBool()) return wrong();
  if (!json["learning_rate_factor"].isNumeric()) return wrong();
  if (!has_number(json, "epsilon") || !has_number(json, "weight_decay")) return wrong();
  OptimizerGroup group{.frozen = json["frozen"].asBool(),
                       .use_muon = json["use_muon"].asBool(),
                       .learning_rate_factor = json["learning_rate_factor"].asDouble()};
  if (json.isMember("betas")) {
    const Json::Value& betas = json["betas"];
    if (!betas.isArray() || betas.size() != 2 || !betas[0].isNumeric() || !betas[1].isNumeric())
      return wrong();
    group.betas = {betas[0].asDouble(), betas[1].asDouble()};
  }
  if (json.isMember("epsilon")) group.epsilon = json["epsilon"].asDouble();
  if (json.isMember("weight_decay")) group.weight_decay = json["weight_decay"].asDouble();
  return group;
}

Result<LossScaler::State> loss_scaler_of(const Reader& reader) {
  PENSTOCK_TRY_ASSIGN(const Json::Value json, reader.json(loss_scaler_key));
  if (!json.isObject() || !json["scale"].isNumeric() || !json["hysteresis"].isInt64() ||
      !json["updates"].isInt64() || !json["last_overflow"].isInt64()) {
    return reader.refuse(loss_scaler_key, "an object of scale, hysteresis, updates and last_overflow");
  }
  return LossScaler::State{.scale = json["scale"].asDouble(),
                           .hysteresis = json["hysteresis"].asInt64(),
                           .updates = json["updates"].asInt64(),
                           .last_overflow = json["last_overflow"].asInt64()};
}

}  // namespace

std::map<std::string, std::string> StatesDescription::to_metadata() const {
  Json::Value groups(Json::arrayValue), scaler;
  for (const OptimizerGroup& group : layout.groups) groups.append(json_of(group));
  scaler["scale"] = loss_scaler.scale;
  scaler["hysteresis"] = Json::Int64{loss_scaler.hysteresis};
  scaler["updates"] = Json::Int64{loss_scaler.updates};
  scaler["last_overflow"] = Json::Int64{loss_scaler.last_overflow};
  std::map<std::string, std::string> metadata = {{"format", "pt"},
                                                 {"penstock.version", version},
                                                 {"penstock.layout", estimate::LayoutFile::text(layout)},
                                                 {groups_key, compact(groups)},
                                                 {"penstock.optimizer", std::string(to_string(optimizer))},
                                                 {"penstock.step", std::to_string(completed_steps)},
                                                 {loss_scaler_key, compact(scaler)}};
  if (!commit.empty()) metadata[commit_key] = commit;
  return metadata;
}

Result<StatesDescription> StatesDescription::from_metadata(const std::map<std::string, std::string>& metadata,
                                                           const std::string& file) {
  const Reader reader(metadata, file);
  PENSTOCK_TRY_ASSIGN(const std::string written, reader.text("penstock.version"));
  if (written != version) {
    return Error::unsupported(operation)
        .object(file + ", metadata penstock.version")
        .wanted(std::string(version))
        .got(config::printable(written))
        .advice("export the states with this version of Penstock");
  }
  StatesDescription description;
  PENSTOCK_TRY_ASSIGN(const std::string layout, reader.text("penstock.layout"));
  PENSTOCK_TRY_ASSIGN(description.layout,
                      estimate::LayoutFile::parse(layout, file + ", metadata penstock.layout"));
  PENSTOCK_TRY_ASSIGN(const Json::Value groups, reader.json(groups_key));
  if (!groups.isArray() || groups.size() < description.layout.groups.size())
    return reader.refuse(groups_key,
                         "a list of at least " + std::to_string(description.layout.groups.size()));
  description.layout.groups.clear();
  for (const Json::Value& json : groups) {
    PENSTOCK_TRY_ASSIGN(OptimizerGroup group, group_of(json, reader));
    description.layout.groups.push_back(group);
  }
  PENSTOCK_TRY(description.layout.validate());
  PENSTOCK_TRY_ASSIGN(const std::string name, reader.text("penstock.optimizer"));
  const auto* const found = std::find_if(std::begin(optimizers), std::end(optimizers),
                                         [&](cpu_adam::Optimizer one) { return to_string(one) == name; });
  if (found == std::end(optimizers)) return reader.refuse("penstock.optimizer", "an optimizer's name");
  description.optimizer = *found;
  PENSTOCK_TRY_ASSIGN(description.completed_steps, reader.count("penstock.step"));
  PENSTOCK_TRY_ASSIGN(description.loss_scaler, loss_scaler_of(reader));
  if (const auto found_commit = metadata.find(commit_key); found_commit != metadata.end())
    description.commit = found_commit->second;
  return description;
}

std::string full_name(const ModelLayout& model, ParameterId parameter) {
  return model.units[parameter.unit].name + "." + model.parameter(parameter).name;
}

std::string state_name(cpu_adam::StateKind kind, const std::string& parameter) {
  return std::string(to_string(kind)) + "." + parameter;
}

bool keeps_state(cpu_adam::Optimizer optimizer, const OptimizerGroup& group, cpu_adam::StateKind kind) {
  if (kind == cpu_adam::StateKind::master) return true;
  if (group.frozen) return false;
  const bool by_adam = optimizer == cpu_adam::Optimizer::muon && !group.use_muon;
  return cpu_adam::keeps(by_adam ? cpu_adam::Optimizer::adam : optimizer, kind);
}

std::vector<ParameterId> owned_parameters(const ModelLayout& model) {
  std::vector<ParameterId> all;
  for (std::uint32_t unit = 0; unit < model.units.size(); ++unit) {
    for (std::uint32_t i = 0; i < model.units[unit].parameters.size(); ++i) all.push_back({unit, i});
  }
  return all;
}

}  // namespace penstock::zero::exchange
