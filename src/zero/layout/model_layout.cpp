#include <penstock/zero/layout/model_layout.hpp>

#include <algorithm>
#include <set>

namespace penstock::zero {

ElementCount ModelLayout::element_count() const {
  ElementCount total;
  for (const UnitLayout& unit : units) {
    for (const ParameterLayout& parameter : unit.parameters) total += parameter.count;
  }
  return total;
}

std::vector<ParameterId> ModelLayout::parameters_of(std::uint32_t unit) const {
  std::vector<ParameterId> ids;
  for (std::uint32_t i = 0; i < units[unit].parameters.size(); ++i) ids.push_back({unit, i});
  ids.insert(ids.end(), units[unit].shared.begin(), units[unit].shared.end());
  return ids;
}

Result<void> ModelLayout::validate() const {
  const auto invalid = [](std::string object, std::string reason) -> Result<void> {
    return Error::invalid_argument("ModelLayout::validate")
        .reason(std::move(reason))
        .object(std::move(object));
  };
  if (units.empty()) return invalid("model", "a model has at least one unit");
  for (std::uint32_t u = 0; u < units.size(); ++u) {
    const UnitLayout& unit = units[u];
    if (unit.parameters.empty() && unit.shared.empty())
      return invalid(unit.name, "a unit has at least one parameter");
    for (const ParameterLayout& parameter : unit.parameters) {
      const std::string name = unit.name + "." + parameter.name;
      if (parameter.count.is_zero()) return invalid(name, "a parameter has at least one element");
      if (parameter.group >= groups.size()) return invalid(name, "its optimizer group does not exist");
    }
    std::set<ParameterId> seen;
    for (const ParameterId& shared : unit.shared) {
      if (shared.unit >= units.size() || shared.index >= units[shared.unit].parameters.size()) {
        return invalid(unit.name, "a shared parameter does not exist");
      }
      if (shared.unit == u) return invalid(unit.name, "a unit cannot share a parameter with itself");
      if (!seen.insert(shared).second) return invalid(unit.name, "a parameter is shared twice");
    }
  }
  return ok();
}

std::vector<FlatSlot> FlatLayout::gaps() const {
  std::vector<FlatSlot> gaps;
  ElementCount at;
  for (const FlatSlot& slot : slots) {
    if (at < slot.begin) gaps.push_back({.begin = at, .count = slot.begin - at});
    at = slot.begin + slot.count;
  }
  if (at < length) gaps.push_back({.begin = at, .count = length - at});
  return gaps;
}

ShardLayout::ShardLayout(const ModelLayout& model, std::uint32_t ranks) : ranks_(ranks) {
  places_.resize(model.units.size());
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const UnitLayout& unit = model.units[u];
    places_[u].resize(unit.parameters.size());
    for (std::uint32_t group = 0; group < model.groups.size(); ++group) {
      FlatLayout flat{.name = unit.name, .unit = u, .group = group};
      ElementCount at;
      for (std::uint32_t i = 0; i < unit.parameters.size(); ++i) {
        if (unit.parameters[i].group != group) continue;
        flat.slots.push_back({{u, i}, at, unit.parameters[i].count});
        places_[u][i] = {static_cast<std::uint32_t>(flats_.size()), at, unit.parameters[i].count};
        at += ElementCount(round_up(unit.parameters[i].count.value(), FlatLayout::alignment));
      }
      if (flat.slots.empty()) continue;
      if (group > 0) flat.name += " (group " + std::to_string(group) + ")";
      flat.length = ElementCount(round_up(at.value(), FlatLayout::alignment * ranks));
      flat.shard = flat.length / ranks;
      flats_.push_back(std::move(flat));
    }
  }

  needed_.resize(model.units.size());
  users_.resize(flats_.size(), 0);
  std::uint32_t first_flat = 0;  // flats stand in the order of their units
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const auto need = [&](std::uint32_t flat) {
      if (std::find(needed_[u].begin(), needed_[u].end(), flat) != needed_[u].end()) return;
      needed_[u].push_back(flat);
      ++users_[flat];
    };
    for (; first_flat < flats_.size() && flats_[first_flat].unit == u; ++first_flat) need(first_flat);
    for (const ParameterId& shared : model.units[u].shared) need(place(shared).flat);
  }
}

}  // namespace penstock::zero
