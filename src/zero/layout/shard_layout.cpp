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

std::string ElementNames::of(const FlatLayout& flat, ElementCount first, ElementCount count) const {
  const ElementCount begin = flat.shard * rank + first,
                     end = flat.shard * rank + std::min(first + count, flat.shard);
  std::string names;
  for (const FlatSlot& slot : flat.slots) {
    if (end <= slot.begin || slot.begin + slot.count <= begin) continue;
    names.append(names.empty() ? "" : " or ")
        .append(model->units[slot.parameter.unit].name + "." + model->parameter(slot.parameter).name);
  }
  return names.empty() ? flat.name : names;
}

namespace {

ElementCount aligned(ElementCount count) {
  return ElementCount(round_up(count.value(), FlatLayout::alignment));
}

}  // namespace

void ShardLayout::place_one_after_the_other(FlatLayout& flat) const {
  ElementCount at;
  for (FlatSlot& slot : flat.slots) {
    slot.begin = at;
    at += aligned(slot.count);
  }
  flat.length = ElementCount(round_up(at.value(), FlatLayout::alignment * ranks_));
  flat.shard = flat.length / ranks_;
}

void ShardLayout::place_matrices(FlatLayout& flat) const {
  std::stable_sort(flat.slots.begin(), flat.slots.end(),
                   [](const FlatSlot& a, const FlatSlot& b) { return a.count > b.count; });
  for (std::size_t first = 0; first < flat.slots.size(); first += ranks_) {
    flat.matrix_ranges.push_back(aligned(flat.slots[first].count));
    flat.shard += flat.matrix_ranges.back();
  }
  flat.length = flat.shard * ranks_;
  ElementCount in_shard;
  for (std::size_t i = 0; i < flat.slots.size(); ++i) {
    flat.slots[i].begin = flat.shard * (i % ranks_) + in_shard;
    if ((i + 1) % ranks_ == 0) in_shard += flat.matrix_ranges[i / ranks_];
  }
  std::sort(flat.slots.begin(), flat.slots.end(),
            [](const FlatSlot& a, const FlatSlot& b) { return a.begin < b.begin; });
}

ShardLayout::ShardLayout(const ModelLayout& model, std::uint32_t ranks) : ranks_(ranks) {
  places_.resize(model.units.size());
  for (std::uint32_t u = 0; u < model.units.size(); ++u) {
    const UnitLayout& unit = model.units[u];
    places_[u].resize(unit.parameters.size());
    for (std::uint32_t group = 0; group < model.groups.size(); ++group) {
      FlatLayout flat{.name = unit.name, .unit = u, .group = group, .frozen = model.groups[group].frozen};
      for (std::uint32_t i = 0; i < unit.parameters.size(); ++i) {
        if (unit.parameters[i].group == group)
          flat.slots.push_back({.parameter = {u, i}, .begin = {}, .count = unit.parameters[i].count});
      }
      if (flat.slots.empty()) continue;
      if (group > 0) flat.name += " (group " + std::to_string(group) + ")";
      model.groups[group].use_muon && !flat.frozen ? place_matrices(flat) : place_one_after_the_other(flat);
      for (const FlatSlot& slot : flat.slots) {
        places_[u][slot.parameter.index] = {static_cast<std::uint32_t>(flats_.size()), slot.begin,
                                            slot.count};
      }
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
