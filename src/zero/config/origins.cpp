#include "zero/config/origins.hpp"

#include "zero/config/rules.hpp"
#include "zero/config/unused_keys.hpp"
#include "zero/config/value.hpp"

#include <algorithm>
#include <optional>
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

/// The key that says what this one asks for; null if it does so itself.
const char* key_instead_of(std::string_view path) {
  if (path == "zero_optimization.sub_group_size") return "penstock.tile_elements";
  if (path == "zero_optimization.offload_optimizer.buffer_count") return "penstock.tiles_in_flight";
  return nullptr;
}

/// Whether a key without a value says something about this configuration.
bool concerns(const Key& key, const Draft& draft) {
  if (key.path.starts_with("scheduler.params.")) return false;  // of another type
  if (key.path.starts_with("optimizer.params."))
    return key.path.ends_with("_lr") && draft.config.optimizer.type == cpu_adam::Optimizer::muon;
  return why_unused(key.path, draft) == nullptr;
}

/// A value, or words.
struct Shown {
  std::string value, words;
  bool operator==(const Shown&) const = default;
};

/// What a key says in this configuration; nothing if that is nothing. `said`: by the file, before the rules; or null.
std::optional<Shown> shown(const Key& key, const Draft& draft, const Json::Value& said) {
  if (const auto value = key.field.get(draft)) return Shown{.value = write_json(write_value(key, value))};
  if (const char* const instead = key_instead_of(key.path)) {
    if (said.isNull()) return std::nullopt;
    return Shown{.words = write_json(said) + ", see " + instead};
  }
  if (key.path == "penstock.state_format")  // that of 16-bit masters
    return Shown{.words = std::string(to_string(draft.config.penstock.state_format))};
  if (!concerns(key, draft)) return std::nullopt;
  return Shown{.words = std::string(key.unset)};
}

}  // namespace

std::vector<KeyOrigin> origins_of(const Config& now, const Draft& read, const Reader& reader) {
  using enum KeyOrigin::Source;
  const Draft draft = effective_draft_of(now), defaults = effective_draft_of({});
  std::vector<KeyOrigin> origins;
  for (const Key& key : schema()) {
    if (!key.field || key.status == Status::deprecated) continue;
    const Reader::Given* const given = reader.given(key.path);
    const Json::Value said =
        reader.has_value(key.path) ? write_value(key, key.field.get(read)) : Json::Value();
    const auto now_shown = shown(key, draft, said);
    if (!now_shown) continue;
    KeyOrigin& origin = origins.emplace_back(
        KeyOrigin{.path = std::string(key.path), .value = now_shown->value, .in_words = now_shown->words});
    if (given != nullptr && !given->is_null) {
      origin.source = given->automatic ? automatic : file;
      origin.given_as = given->as;
      origin.line = given->line;
      const bool says_other = !said.isNull() && !origin.value.empty() && write_json(said) != origin.value;
      if (says_other) origin.given_value = write_json(said);
      continue;
    }
    const bool is_unset = now_shown->value.empty() && now_shown->words == key.unset;
    if (!is_unset && now_shown != shown(key, defaults, {})) origin.source = derived;
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
      if (shown(derived, draft, {}) != Shown{.value = origin.value, .words = origin.in_words})
        origin.follows_from.push_back(path);
    }
  }
}

}  // namespace penstock::zero::config
