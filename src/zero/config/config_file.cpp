#include <penstock/zero/config/config_file.hpp>

#include "base/bounded_file.hpp"
#include "base/utf8.hpp"
#include "zero/config/base64.hpp"
#include "zero/config/check.hpp"
#include "zero/config/config_error.hpp"
#include "zero/config/hjson.hpp"
#include "zero/config/origins.hpp"
#include "zero/config/rules.hpp"

#include <algorithm>

namespace penstock::zero {

namespace {

using config::Problem;

/// Reports violations for keys without a reported problem; the others may be consequences of that problem.
void report_violations(const Config& config, config::Reader& reader) {
  for (const config::Violation& violation : config::check(config)) {
    const auto reported = [&](std::string_view key) { return reader.has_problem(key); };
    if (std::any_of(violation.keys.begin(), violation.keys.end(), reported)) continue;
    reader.report(violation.keys.front(), violation.text);
  }
}

}  // namespace

std::string KeyOrigin::from() const {
  switch (source) {
    case Source::file:
      return "line " + std::to_string(line) + (given_value.empty() ? "" : ", which says " + given_value);
    case Source::automatic: return "line " + std::to_string(line) + " (auto)";
    case Source::derived: break;
    case Source::default_value: return "default";
  }
  std::string text = "derived";
  for (const std::string& key : follows_from)
    text.append(&key == &follows_from.front() ? " from " : ", ").append(key);
  return text;
}

Result<ConfigFile> ConfigFile::parse(std::string_view text, const std::string& name, const Options& options) {
  if (options.world_size == 0)
    return Error::invalid_argument("ConfigFile::parse").object("world_size").wanted("at least 1").got(0u);

  const auto refuse = [&](std::vector<Problem> problems) {
    return config::to_error("ConfigFile::parse", name, std::move(problems));
  };
  const config::LineIndex lines(text);
  const auto refuse_byte = [&](std::size_t byte, const char* what) {
    return refuse({{.line = lines.line_of(static_cast<std::ptrdiff_t>(byte)),
                    .text = "byte " + std::to_string(byte) + what}});
  };
  if (const auto nul = text.find('\0'); nul != text.npos) return refuse_byte(nul, " is NUL: it is no text");
  if (const auto bad = first_not_utf8(text)) return refuse_byte(*bad, " is not UTF-8");
  std::vector<Problem> problems;
  const Json::Value root = config::parse_hjson(text, problems);
  if (problems.empty() && !root.isObject())
    problems.push_back(
        {.text = root.isArray() ? "wanted an object of keys, got a list" : "wanted an object of keys"});
  if (!problems.empty()) return refuse(std::move(problems));

  config::Reader reader(lines, options.lenient, problems);
  config::Draft draft;
  reader.read(root, draft);
  const config::Draft read = draft;
  config::apply_rules(draft, reader, options.world_size);
  report_violations(draft.config, reader);
  if (!problems.empty()) return refuse(std::move(problems));
  draft.config.notes = reader.take_notes();
  std::vector<KeyOrigin> origins = config::origins_of(draft.config, read, reader);
  if (options.explain) config::name_sources(origins, root, lines, reader, options);
  return ConfigFile{std::move(draft.config), std::move(origins)};
}

Result<ConfigFile> ConfigFile::read(const std::filesystem::path& file, const Options& options) {
  PENSTOCK_TRY_ASSIGN(const std::string text, read_text_file("Config::from_file", file, {"a configuration"}));
  return parse(text, file.string(), options);
}

Result<ConfigFile> ConfigFile::of_argument(const std::string& argument, const Options& options) {
  std::error_code error;
  const bool exists = std::filesystem::exists(argument, error);
  const auto text = exists ? std::nullopt : config::decode_base64_url(argument);
  const bool is_text = text && text->find('\0') == text->npos && !first_not_utf8(*text);
  return is_text ? parse(*text, "the configuration in base64", options) : read(argument, options);
}

Result<Config> Config::from_text(std::string_view text, const std::string& name, std::uint32_t world_size) {
  PENSTOCK_TRY_ASSIGN(ConfigFile file, ConfigFile::parse(text, name, {.world_size = world_size}));
  return std::move(file.config);
}

Result<Config> Config::from_file(const std::filesystem::path& file, std::uint32_t world_size) {
  PENSTOCK_TRY_ASSIGN(ConfigFile read, ConfigFile::read(file, {.world_size = world_size}));
  return std::move(read.config);
}

}  // namespace penstock::zero
