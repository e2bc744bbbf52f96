#include "zero/estimate/layout_file.hpp"

#include "base/bounded_file.hpp"
#include "base/control_character.hpp"
#include "zero/config/nearest.hpp"
#include "zero/config/strict_reader.hpp"
#include "zero/config/value.hpp"
#include "zero/estimate/tensor_units.hpp"

#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

namespace penstock::zero::estimate {

namespace {

constexpr const char* operation = "LayoutFile::parse";

/// A value that cannot be used is replaced by one that can.
class LayoutReader {
 public:
  explicit LayoutReader(config::StrictReader& reader) : reader_(reader) {}

  ModelLayout read(const Json::Value& root) {
    ModelLayout layout;
    if (!is_object(root, "", {"units", "checkpoints", "frozen_groups"})) return layout;
    const Json::Value& units = root["units"];
    if (!units.isArray() || units.empty()) {
      report(units.isNull() ? root : units, "units", "wanted a list of at least one unit");
      return layout;
    }
    for (Json::ArrayIndex i = 0; i < units.size() && !is_full(); ++i) {
      read_unit(units[i], "units[" + std::to_string(i) + "]", layout);
    }
    for (const Shared& shared : shared_) resolve(shared, layout);
    if (root.isMember("checkpoints")) read_checkpoints(root["checkpoints"], layout);
    layout.groups.resize(groups_.empty() ? 1 : *groups_.rbegin() + 1);
    read_frozen_groups(root["frozen_groups"], layout);
    return layout;
  }

 private:
  /// A parameter that a unit uses too; its owner may come later.
  struct Shared {
    std::uint32_t unit;
    const Json::Value* json;
    std::string path;
  };

  [[nodiscard]] bool is_full() const { return reader_.is_full(); }
  void report(const Json::Value& json, const std::string& path, std::string text) {
    reader_.report(json, path, std::move(text));
  }
  /// Of a value that was given.
  void refuse(const Json::Value& json, const std::string& path, const std::string& wanted) {
    report(json, path, wanted + (json.isNull() ? "" : ", got " + config::shown(json)));
  }
  bool is_object(const Json::Value& json, const std::string& path,
                 std::initializer_list<std::string_view> known) {
    return reader_.is_object(json, path, known);
  }

  std::optional<std::string> read_name(const Json::Value& object, const std::string& path,
                                       const char* key = "name") {
    const Json::Value& json = object[key];
    const std::string name = json.isString() ? json.asString() : "";
    if (!name.empty() && name == escape_control_characters(name, "")) return name;
    report(json.isNull() ? object : json, path + "." + key,
           "wanted a name that is not empty, without control characters");
    return std::nullopt;
  }

  /// A whole number; `least`, if it cannot be used.
  std::uint64_t read_count(const Json::Value& json, const std::string& path, std::uint64_t least,
                           std::uint64_t most) {
    if (json.isUInt64() && json.asUInt64() >= least && json.asUInt64() <= most) return json.asUInt64();
    refuse(json, path, "wanted a whole number from " + std::to_string(least) + " to " + std::to_string(most));
    return least;
  }

  ElementCount read_shape(const Json::Value& json, const std::string& path,
                          std::vector<std::uint64_t>& shape) {
    constexpr std::uint64_t most = ModelLayout::unit_elements_max.value();
    std::uint64_t count = 1;
    if (!json.isArray() || json.empty()) {
      refuse(json, path, "wanted a list of at least one dimension");
      return ElementCount(1);
    }
    for (Json::ArrayIndex i = 0; i < json.size() && !is_full(); ++i) {
      const std::uint64_t length = read_count(json[i], path + "[" + std::to_string(i) + "]", 1, most);
      if (length > most / count) {
        report(json, path, "wanted at most " + std::to_string(most) + " elements");
        return ElementCount(1);
      }
      count *= length;
      shape.push_back(length);
    }
    return ElementCount(count);
  }

  bool read_flag(const Json::Value& json, const std::string& path) {
    if (!json.isBool()) refuse(json, path, "wanted true or false");
    return json.isBool() && json.asBool();
  }

  std::optional<ParameterLayout> read_parameter(const Json::Value& json, const std::string& path) {
    if (!is_object(json, path, {"name", "count", "shape", "group", "use_muon"})) return std::nullopt;
    ParameterLayout parameter{.count = ElementCount(1)};
    parameter.name = read_name(json, path).value_or("");
    if (json.isMember("count") == json.isMember("shape")) {
      report(json, path, "wanted either \"count\" or \"shape\"");
    } else if (json.isMember("shape")) {
      std::vector<std::uint64_t> shape;
      parameter.count = read_shape(json["shape"], path + ".shape", shape);
      const bool is_muons = !json.isMember("use_muon") || read_flag(json["use_muon"], path + ".use_muon");
      if (is_muons && shape.size() == json["shape"].size()) set_shape(parameter, shape);
    } else {
      parameter.count =
          ElementCount(read_count(json["count"], path + ".count", 1, ModelLayout::unit_elements_max.value()));
    }
    if (json.isMember("group")) {
      parameter.group = static_cast<std::uint32_t>(
          read_count(json["group"], path + ".group", 0, LayoutFile::groups_max - 1));
    }
    groups_.insert(parameter.group);
    return parameter;
  }

  std::vector<ParameterLayout> read_parameters(const Json::Value& json, const std::string& path) {
    std::vector<ParameterLayout> parameters;
    if (json.isNull()) return parameters;
    if (!json.isArray()) return report(json, path, "wanted a list of parameters"), parameters;
    std::map<std::string, bool> names;
    for (Json::ArrayIndex i = 0; i < json.size() && !is_full(); ++i) {
      const std::string of_parameter = path + "[" + std::to_string(i) + "]";
      const auto parameter = read_parameter(json[i], of_parameter);
      if (!parameter) continue;
      if (!parameter->name.empty() && !names.emplace(parameter->name, true).second) {
        report(json[i], of_parameter + ".name", "the unit has another parameter of this name");
      }
      parameters.push_back(*parameter);
    }
    return parameters;
  }

  void read_unit(const Json::Value& json, const std::string& path, ModelLayout& layout) {
    if (!is_object(json, path, {"name", "repeat", "parameters", "shared"})) return;
    const auto name = read_name(json, path);
    const bool repeats = json.isMember("repeat");
    const std::uint64_t count =
        repeats ? read_count(json["repeat"], path + ".repeat", 1, LayoutFile::parameters_max) : 1;
    const auto parameters = read_parameters(json["parameters"], path + ".parameters");
    const Json::Value& shared = json["shared"];
    if (!shared.isNull() && !shared.isArray())
      report(shared, path + ".shared", "wanted a list of parameters");
    if (parameters.empty() && shared.empty()) report(json, path, "wanted at least one parameter");
    total_ += count * (parameters.size() + shared.size() + 1);
    if (total_ > LayoutFile::parameters_max) {
      report(json, path,
             "wanted at most " + std::to_string(LayoutFile::parameters_max) + " units and parameters in all");
    }
    if (!name || reader_.problem_count() > 0) return;
    for (std::uint64_t i = 0; i < count; ++i) {
      const auto number = static_cast<std::uint32_t>(layout.units.size());
      UnitLayout unit{.name = repeats ? *name + "." + std::to_string(i) : *name, .parameters = parameters};
      if (!units_.emplace(unit.name, number).second) {
        return report(json, path + ".name", "another unit has the name \"" + unit.name + "\"");
      }
      layout.units.push_back(std::move(unit));
      for (Json::ArrayIndex k = 0; k < shared.size(); ++k) {
        shared_.push_back({number, &shared[k], path + ".shared[" + std::to_string(k) + "]"});
      }
    }
  }

  void resolve(const Shared& shared, ModelLayout& layout) {
    if (is_full() || !is_object(*shared.json, shared.path, {"unit", "parameter"})) return;
    const auto unit = read_name(*shared.json, shared.path, "unit");
    const auto parameter = read_name(*shared.json, shared.path, "parameter");
    if (!unit || !parameter) return;
    const auto owner = units_.find(*unit);
    if (owner == units_.end()) {
      std::vector<std::string_view> names;
      for (const auto& [name, number] : units_) names.push_back(name);
      return report(*shared.json, shared.path + ".unit", "no unit has this name" + hint(*unit, names));
    }
    if (owner->second == shared.unit)
      return report(*shared.json, shared.path + ".unit", "a unit does not share a parameter with itself");
    const auto& owned = layout.units[owner->second].parameters;
    std::vector<std::string_view> names;
    for (std::uint32_t i = 0; i < owned.size(); ++i) {
      names.push_back(owned[i].name);
      if (owned[i].name != *parameter) continue;
      if (!shares_.emplace(shared.unit, owner->second, i).second)
        return report(*shared.json, shared.path, "the unit shares this parameter already");
      return layout.units[shared.unit].shared.push_back({owner->second, i});
    }
    report(*shared.json, shared.path + ".parameter",
           "unit \"" + *unit + "\" has no parameter of this name" + hint(*parameter, names));
  }

  static std::string hint(const std::string& name, const std::vector<std::string_view>& names) {
    const std::string_view nearest = config::nearest_spelling(name, names);
    return nearest.empty() ? "" : "; did you mean \"" + std::string(nearest) + "\"?";
  }

  void read_checkpoints(const Json::Value& json, ModelLayout& layout) {
    if (!is_object(json, "checkpoints", {"count", "size", "leased_max", "reads"})) return;
    CheckpointLayout& checkpoints = layout.checkpoints;
    checkpoints.count = static_cast<std::uint32_t>(
        read_count(json["count"], "checkpoints.count", 1, ModelLayout::checkpoints_max));
    checkpoints.size = read_size(json["size"]);
    for (const auto& [key, to] :
         {std::pair("leased_max", &checkpoints.leased_max), {"reads", &checkpoints.reads}}) {
      if (!json.isMember(key)) continue;
      *to = static_cast<std::uint32_t>(read_count(json[key], std::string("checkpoints.") + key, 1, 65536));
    }
  }

  void read_frozen_groups(const Json::Value& json, ModelLayout& layout) {
    if (!json.isNull() && !json.isArray()) return refuse(json, "frozen_groups", "wanted a list of groups");
    if (groups_.empty()) return;  // no parameter could be read
    for (Json::ArrayIndex i = 0; i < json.size() && !is_full(); ++i) {
      const std::string path = "frozen_groups[" + std::to_string(i) + "]";
      if (json[i].isUInt() && groups_.contains(json[i].asUInt())) {
        layout.groups[json[i].asUInt()].frozen = true;
        continue;
      }
      std::string known;
      for (const std::uint32_t group : groups_) known += (known.empty() ? "" : ", ") + std::to_string(group);
      refuse(json[i], path, "wanted a group that a parameter has (" + known + ")");
    }
  }

  ByteCount read_size(const Json::Value& json) {
    if (!json.isString()) {
      const std::uint64_t most = ModelLayout::checkpoint_bytes_max.value();
      if (json.isUInt64() && json.asUInt64() >= 1 && json.asUInt64() <= most)
        return ByteCount(json.asUInt64());
      refuse(
          json, "checkpoints.size",
          "wanted bytes, a whole number from 1 to " + std::to_string(most) + " or a size such as \"16 MiB\"");
      return 1_B;
    }
    const auto bytes = config::parse_bytes(json.asString());
    if (!bytes) report(json, "checkpoints.size", bytes.error());
    return ByteCount(bytes.value_or(1));
  }

  config::StrictReader& reader_;
  std::vector<Shared> shared_;
  std::map<std::string, std::uint32_t> units_;
  std::uint64_t total_ = 0;
  std::set<std::uint32_t> groups_;
  std::set<std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>>
      shares_;  // unit, and unit and index of what it shares
};

}  // namespace

Result<ModelLayout> LayoutFile::parse(std::string_view text, const std::string& name) {
  PENSTOCK_TRY_ASSIGN(const ModelLayout layout,
                      config::read_strictly(operation, name, "the layout", "\"units\"", text,
                                            [](config::StrictReader& reader, const Json::Value& root) {
                                              return LayoutReader(reader).read(root);
                                            }));
  PENSTOCK_TRY(layout.validate());
  return layout;
}

Result<ModelLayout> LayoutFile::read(const std::filesystem::path& file) {
  PENSTOCK_TRY_ASSIGN(const std::string text, read_text_file(operation, file, {"a layout"}));
  return parse(text, file.string());
}

}  // namespace penstock::zero::estimate
