#include "zero/launch/run_description.hpp"

#include "zero/config/common_settings.hpp"
#include "zero/launch/control_message.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

namespace penstock::zero {

namespace {

constexpr std::size_t description_bytes_max = control::payload_bytes_max / 2, value_bytes_max = 160;

/// Without what would end a line or a key.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; }, '?');
  return text;
}

std::string hash_of(const std::string& text) {
  char digits[20];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(XXH3_64bits(text.data(), text.size())));
  return digits;
}

/// A long value is cut, and its hash tells it from others with the same beginning.
std::string line(const std::string& key, const std::string& value) {
  const bool cut = value.size() > value_bytes_max;
  return printable(key) + '\t' +
         printable(cut ? value.substr(0, value_bytes_max) + "… (hash " + hash_of(value) + ")" : value) + '\n';
}

std::string text_of(const UnitLayout& unit) {
  std::string text;
  for (const ParameterLayout& parameter : unit.parameters) {
    text.append(text.empty() ? "" : ", ").append(parameter.name).append(" of ");
    text.append(std::to_string(parameter.count.value())).append(" elements in optimizer group ");
    text.append(std::to_string(parameter.group));
    for (const std::uint64_t length : parameter.shape) {
      text.append(&length == &parameter.shape.front() ? " of shape " : " x ").append(std::to_string(length));
    }
  }
  for (const ParameterId& shared : unit.shared) {
    text.append(", parameter ").append(std::to_string(shared.index)).append(" of unit ");
    text.append(std::to_string(shared.unit));
  }
  return text;
}

std::string describe(const ModelLayout& model) {
  std::string text = line("the model's number of units", std::to_string(model.units.size()));
  std::string groups;
  for (const OptimizerGroup& group : model.groups)
    groups.append(groups.empty() ? "" : ", ").append(to_string(group));
  text += line("the model's optimizer groups", groups);
  const CheckpointLayout& checkpoints = model.checkpoints;
  text += line("the model's activation checkpoints",
               std::to_string(checkpoints.count) + " of " + std::to_string(checkpoints.size.value()) +
                   " bytes, " + std::to_string(checkpoints.leased_max) + " leased at a time");
  for (std::size_t i = 0; i < model.units.size(); ++i)
    text += line("unit " + std::to_string(i) + " (" + model.units[i].name + ")", text_of(model.units[i]));
  return text;
}

struct Difference {
  std::string key, of_rank_0, mine;
};

std::string_view take(std::string_view& text, char end) {
  const std::size_t size = std::min(text.find(end), text.size());
  const std::string_view taken = text.substr(0, size);
  text.remove_prefix(std::min(size + 1, text.size()));
  return taken;
}

/// The value of each key of a description.
std::map<std::string_view, std::string_view> values_of(std::string_view description) {
  std::map<std::string_view, std::string_view> values;
  while (!description.empty()) {
    std::string_view value = take(description, '\n');
    const std::string_view key = take(value, '\t');
    values[key] = value;
  }
  return values;
}

/// In the order of rank 0's lines; what only the other has, last.
std::optional<Difference> first_difference(std::string_view rank_0, std::string_view mine) {
  const auto of_rank_0 = values_of(rank_0), of_mine = values_of(mine);
  const auto value = [](const auto& values, std::string_view key) {
    const auto found = values.find(key);
    return std::string(found == values.end() ? "nothing" : found->second);
  };
  for (std::string_view lines : {rank_0, mine}) {
    while (!lines.empty()) {
      std::string_view line = take(lines, '\n');
      const std::string_view key = take(line, '\t');
      Difference difference{std::string(key), value(of_rank_0, key), value(of_mine, key)};
      if (difference.of_rank_0 != difference.mine) return difference;
    }
  }
  return std::nullopt;
}

std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* const begin = reinterpret_cast<const std::byte*>(text.data());
  return {begin, begin + text.size()};
}
std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace

std::string describe_run(const Config& config, const ModelLayout& model) {
  std::string text;
  for (const config::Setting& setting : config::common_settings(config))
    text += line(std::string(setting.key), setting.value);
  const std::string of_model = describe(model);
  const bool fits = text.size() + of_model.size() <= description_bytes_max;
  return text + (fits ? of_model : line("the model's layout", "hash " + hash_of(of_model)));
}

Result<void> check_same_run(std::uint32_t rank, const GatherBytes& gather, const std::string& description) {
  // Only rank 0's is sent to all, so that what is sent does not grow with the number of ranks.
  PENSTOCK_TRY_ASSIGN(const auto hashes, gather("the hash of the run", bytes_of(hash_of(description))));
  if (std::all_of(hashes.begin(), hashes.end(), [&](const auto& one) { return one == hashes.front(); }))
    return ok();
  PENSTOCK_TRY_ASSIGN(const auto descriptions,
                      gather("the run of rank 0", bytes_of(rank == 0 ? description : std::string())));
  const auto difference = first_difference(text_of(descriptions.front()), description);
  std::string mine;
  if (difference) mine = difference->key + '\t' + difference->of_rank_0 + '\t' + difference->mine;
  PENSTOCK_TRY_ASSIGN(const auto differences, gather("differences of the runs", bytes_of(mine)));
  Error error = Error::invalid_argument("Rank::create").reason("ranks were started with different settings");
  bool first = true;
  for (std::size_t other = 0; other < differences.size(); ++other) {
    const std::string text = text_of(differences[other]);
    if (text.empty()) continue;
    std::string_view rest = text;
    const std::string key(take(rest, '\t')), of_rank_0(take(rest, '\t')), of_rank(rest);
    if (std::exchange(first, false)) {
      error = std::move(error)
                  .object(key)
                  .wanted(of_rank_0 + ", as rank 0")
                  .got(of_rank + ", of rank " + std::to_string(other))
                  .advice("start every rank with the same ds_config.json and the same model");
    } else {
      error = std::move(error).note("rank " + std::to_string(other) + "  " + key + " " + of_rank);
    }
  }
  return error;
}

}  // namespace penstock::zero
