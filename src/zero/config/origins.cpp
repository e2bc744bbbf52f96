#include "zero/config/origins.hpp"

#include "zero/config/rules.hpp"
#include "zero/config/unused_keys.hpp"
#include "zero/config/value.hpp"

#include <algorithm>
#include <span>
#include <string>
#include <string_view>

namespace penstock::zero::config {

namespace {

/// The file without the key whose path is spelled so.
Json::Value without(Json::Value root, std::string_view path) {
  Json::Value* block = &root;
  for (std::size_t dot = path.find('.'); dot != path.npos; dot = path.find('.')) {
    block = &(*block)[std::string(path.substr(0, dot))];
    if (!block->isObject()) return root;
    path.remove_prefix(dot + 1);
  }
  block->removeMember(std::string(path));
  return root;
}

/// What the file would mean, also where it would have errors.
Draft meaning_of(const Json::Value& root, const LineIndex& lines, const ConfigFile::Options& options) {
  std::vector<Problem> ignored;
  Reader reader(lines, options.lenient, ignored);
  Draft draft;
  reader.read(root, draft);
  apply_rules(draft, reader, options.world_size);
  return effective_draft_of(draft.config);
}

/// Whether a key without a value says nothing about this configuration.
bool is_foreign(const Key& key, const Draft& draft) {
  constexpr std::string_view of_another_key[] = {
      "zero_optimization.sub_group_size",                  // penstock.tile_elements has it
      "zero_optimization.offload_optimizer.buffer_count",  // penstock.tiles_in_flight has it
  };
  constexpr std::string_view of_muon[] = {"optimizer.params.muon_lr", "optimizer.params.adam_lr"};
  const auto is_among = [&](std::span<const std::string_view> paths) {
    return std::find(paths.begin(), paths.end(), key.path) != paths.end();
  };
  if (is_among(of_muon)) return draft.config.optimizer.type != cpu_adam::Optimizer::muon;
  const bool is_of_another_type =
      key.path.starts_with("optimizer.params.") || key.path.starts_with("scheduler.params.");
  return is_of_another_type || is_among(of_another_key) || why_unused(key.path, draft) != nullptr;
}

}  // namespace

std::vector<KeyOrigin> origins_of(const Config& now, const Draft& read, const Reader& reader) {
  using enum KeyOrigin::Source;
  const Draft draft = effective_draft_of(now), defaults = effective_draft_of({});
  std::vector<KeyOrigin> origins;
  for (const Key& key : schema()) {
    if (!key.field || key.status == Status::deprecated) continue;
    const Json::Value value = write_value(key, key.field.get(draft));
    if (value.isNull() && is_foreign(key, draft)) continue;
    KeyOrigin& origin = origins.emplace_back(KeyOrigin{.path = std::string(key.path)});
    if (value.isNull())
      origin.in_words = key.unset;
    else
      origin.value = write_json(value);
    if (const Reader::Given* given = reader.given(key.path)) {
      origin.source = given->automatic ? automatic : file;
      origin.given_as = given->as;
      origin.line = given->line;
      const Json::Value said = write_value(key, key.field.get(read));
      if (!given->automatic && !said.isNull() && said != value) origin.given_value = write_json(said);
    } else if (value != write_value(key, key.field.get(defaults))) {
      origin.source = derived;
    }
  }
  return origins;
}

void name_sources(std::vector<KeyOrigin>& origins, const Json::Value& root, const LineIndex& lines,
                  const Reader& reader, const ConfigFile::Options& options) {
  const auto is_derived = [](const KeyOrigin& origin) { return origin.source == KeyOrigin::Source::derived; };
  if (std::none_of(origins.begin(), origins.end(), is_derived)) return;
  for (const auto& [path, given] : reader.all_given()) {
    const Key* const key = find_key(path);
    if (key == nullptr || key->is_object()) continue;
    const Draft draft = meaning_of(without(root, given.as), lines, options);
    for (KeyOrigin& origin : origins) {
      if (!is_derived(origin)) continue;
      const Key& derived = *find_key(origin.path);
      if (write_json(write_value(derived, derived.field.get(draft))) != origin.value)
        origin.follows_from.push_back(path);
    }
  }
}

}  // namespace penstock::zero::config
