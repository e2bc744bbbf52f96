#include "zero/layout/shard_layout.hpp"

#include <algorithm>
#include <string>

namespace penstock::zero {

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
      FlatLayout flat{.name = unit.name, .unit = u, .group = group, .frozen = model.groups[group].frozen};
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
  trained_.resize(model.units.size());
  users_.resize(flats_.size(), 0);
  std::uint32_t first_flat = 0;  // flats stand in the order of their units
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const auto need = [&](std::uint32_t flat) {
      if (std::find(needed_[u].begin(), needed_[u].end(), flat) != needed_[u].end()) return;
      needed_[u].push_back(flat);
      if (!flats_[flat].frozen) trained_[u].push_back(flat);
      ++users_[flat];
    };
    for (; first_flat < flats_.size() && flats_[first_flat].unit == u; ++first_flat) need(first_flat);
    for (const ParameterId& shared : model.units[u].shared) need(place(shared).flat);
  }
}

}  // namespace penstock::zero
