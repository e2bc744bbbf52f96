#include "zero/config/reader.hpp"

#include "zero/config/nearest.hpp"
#include "zero/config/value.hpp"

#include <algorithm>

namespace penstock::zero::config {

namespace {

std::string_view block_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? std::string_view() : path.substr(0, dot);
}

std::string_view name_of(std::string_view path) {
  const std::size_t dot = path.rfind('.');
  return dot == std::string_view::npos ? path : path.substr(dot + 1);
}

/// The names of the keys in a block, "" for the top level.
std::vector<std::string_view> names_in(std::string_view block) {
  std::vector<std::string_view> names;
  const auto consider = [&](std::string_view path) {
    if (block_of(path) == block) names.push_back(name_of(path));
  };
  for (const Key& key : schema()) consider(key.path);
  for (const Alias& alias : aliases()) consider(alias.path);
  return names;
}

/// Whether no key of the block is acted on.
bool has_no_effect(std::string_view block) {
  const std::string_view top = block.substr(0, block.find('.'));
  return std::none_of(schema().begin(), schema().end(), [&](const Key& key) {
    return key.path.starts_with(top) && key.path.substr(0, key.path.find('.')) == top &&
           (key.status == Status::deprecated || (key.status == Status::supported && key.kind != Kind::block));
  });
}

std::string in_block(std::string_view block) {
  return block.empty() ? "at the top level" : "in " + std::string(block);
}

}  // namespace

void Reader::report(std::string_view path, std::string text) {
  const auto given = given_.find(path);
  if (given == given_.end()) {
    problems_.push_back({.path = std::string(path), .text = std::move(text)});
  } else {
    problems_.push_back({given->second.as, given->second.line, std::move(text)});
  }
}

bool Reader::has_problem(std::string_view path) const {
  const auto given = given_.find(path);
  const std::string_view as = given == given_.end() ? path : std::string_view(given->second.as);
  return std::any_of(problems_.begin(), problems_.end(),
                     [&](const Problem& problem) { return problem.path == as; });
}

const Reader::Given* Reader::given(std::string_view path) const {
  const auto found = given_.find(path);
  return found == given_.end() ? nullptr : &found->second;
}

void Reader::note(std::string_view path, const std::string& text) {
  const auto given = given_.find(path);
  const std::uint32_t line = given == given_.end() ? 0 : given->second.line;
  const std::string place =
      line == 0 ? std::string(path) : given->second.as + ", line " + std::to_string(line);
  notes_.emplace_back(line, place + ": " + text);
}

std::vector<std::string> Reader::take_notes() {
  // Notes without a line come last.
  std::stable_sort(notes_.begin(), notes_.end(),
                   [](const auto& a, const auto& b) { return a.first - 1 < b.first - 1; });
  std::vector<std::string> notes;
  for (auto& [line, text] : notes_) notes.push_back(std::move(text));
  notes_.clear();
  return notes;
}

void Reader::read(const Json::Value& root, Draft& draft) {
  read_block(root, "", draft);
}

void Reader::read_block(const Json::Value& object, const std::string& prefix, Draft& draft) {
  for (const std::string& name : object.getMemberNames()) {
    const Json::Value& json = object[name];
    const std::uint32_t line = lines_.line_of(json.getOffsetStart());
    const std::string path = prefix + name;

    if (name.find('.') != std::string::npos) {
      problems_.push_back({printable(path), line,
                           "unknown key: no name has a dot; write nested objects, {\"a\": {\"b\": 1}}"});
      continue;
    }
    const Alias* alias = find_alias(path);
    const Key* key = find_key(alias != nullptr ? alias->stands_for : std::string_view(path));
    if (key == nullptr) {
      report_unknown(path, json, names_in(block_of(path)));
      continue;
    }
    const auto [at, first] = given_.emplace(key->path, Given{path, line});
    if (!first) {
      problems_.push_back({path, line,
                           "the same key as " + at->second.as + " on line " +
                               std::to_string(at->second.line) + "; keep one of them"});
      continue;
    }
    if (alias != nullptr && alias->deprecated) {
      note(key->path, "deprecated, use " + std::string(name_of(alias->stands_for)));
    }
    read_key(*key, json, draft);
  }
}

void Reader::read_key(const Key& key, const Json::Value& json, Draft& draft) {
  if (key.status == Status::removed) return report(key.path, std::string(key.help));
  if (json.isNull() && key.nullable) {
    given_.find(key.path)->second.is_null = true;
    return;
  }
  const bool is_top_level = block_of(key.path).empty();
  if (json.isString() && json.asString() == "auto" && !(key.is_object() && is_top_level)) {
    if (!key.has_default) return report(key.path, "\"auto\" has no meaning here; give a value");
    given_.find(key.path)->second.automatic = true;
    if (key.field) note(key.path, "\"auto\" means the default here");
    return;
  }
  if (key.kind == Kind::feature) return read_feature(key, json);

  if (key.path == "zero_optimization" && json.isBool()) {
    // DeepSpeed's first form of the key.
    draft.config.stage = json.asBool() ? 1 : 0;
    given_.emplace("zero_optimization.stage", given_.find(key.path)->second);
    return note(key.path, "deprecated, use an object with \"stage\": " + std::to_string(draft.config.stage));
  }

  const auto value = read_value(key, json);
  if (!value) return report(key.path, value.error());
  if (key.kind == Kind::block) return read_block(json, std::string(key.path) + ".", draft);

  if (key.field) return key.field.set(draft, *value);
  switch (key.status) {
    case Status::no_effect: note(key.path, "no effect here: " + std::string(key.help)); break;
    case Status::only_default:
      if (!is_fallback(key, json, *value)) {
        report(key.path, "not supported yet; only " + std::string(key.fallback) + " is");
      }
      break;
    case Status::supported:
    case Status::deprecated:
    case Status::removed: break;
  }
}

void Reader::read_feature(const Key& key, const Json::Value& json) {
  if (!json.isObject()) {
    const bool is_unused = key.status == Status::no_effect;
    return report(key.path, is_unused ? read_value(key, json).error() : "not supported yet; leave it out");
  }
  const auto members = choices_of(key);
  bool known = true;
  for (const std::string& name : json.getMemberNames()) {
    if (key.choices == any_member || std::find(members.begin(), members.end(), name) != members.end())
      continue;
    report_unknown(std::string(key.path) + "." + name, json[name], members);
    known = false;
  }
  if (key.status == Status::no_effect) return note(key.path, "no effect here: " + std::string(key.help));
  const Json::Value& enabled = json["enabled"];
  const bool is_default = json.empty() && key.fallback != "null";
  if (!known || is_default || (enabled.isBool() && !enabled.asBool())) return;
  report(key.path, json.isMember("enabled") ? "not supported yet; set \"enabled\" to false"
                                            : "not supported yet; leave it out");
}

void Reader::report_unknown(const std::string& path, const Json::Value& json,
                            std::span<const std::string_view> neighbours) {
  const std::string_view name = name_of(path);
  const std::uint32_t line = lines_.line_of(json.getOffsetStart());
  const std::string_view nearest = nearest_spelling(name, neighbours);
  const bool is_others =
      block_of(path).empty() ? json.isObject() && nearest.empty() : has_no_effect(block_of(path));
  if (lenient_ && is_others) {
    notes_.emplace_back(line, printable(path) + ", line " + std::to_string(line) + ": unknown key, ignored");
    return;
  }
  std::string text = "unknown key";
  if (const ForeignName* foreign = find_foreign_name(path); foreign != nullptr) {
    const bool is_near = block_of(foreign->key) == block_of(path);
    text.append("; use \"").append(is_near ? name_of(foreign->key) : foreign->key);
    text.append("\", ").append(what_it_takes(*find_key(foreign->key)));
  } else if (!nearest.empty()) {
    text += "; did you mean \"" + std::string(nearest) + "\"?";
  } else {
    const auto elsewhere = std::find_if(schema().begin(), schema().end(),
                                        [&](const Key& key) { return name_of(key.path) == name; });
    if (elsewhere != schema().end()) {
      text += "; \"" + std::string(name) + "\" belongs " + in_block(block_of(elsewhere->path));
    }
  }
  problems_.push_back({printable(path), line, std::move(text)});
}

}  // namespace penstock::zero::config
