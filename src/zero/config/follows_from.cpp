#include "zero/config/follows_from.hpp"

#include "zero/config/rules.hpp"
#include "zero/config/value.hpp"

#include <algorithm>
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
  return draft_of(draft.config);
}

}  // namespace

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
