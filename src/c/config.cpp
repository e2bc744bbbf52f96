#include "c/config.hpp"

#include <penstock/c/config.h>

namespace {

using namespace penstock;
using zero::ConfigFile;

Result<ConfigFile::Options> read(const char* function, const penstock_config_options* given) {
  ConfigFile::Options options;
  if (given == nullptr) return options;
  PENSTOCK_TRY_ASSIGN(const auto from, c::read_struct(function, "options", given));
  if (from.world_size != 0) options.world_size = from.world_size;
  options.lenient = from.lenient != 0;
  return options;
}

void give(ConfigFile file, penstock_config** to) {
  std::string json = file.config.to_json();
  c::give(to, penstock_config{std::move(file), std::move(json)});
}

}  // namespace

penstock_error* penstock_config_read(const char* file, const penstock_config_options* options,
                                     penstock_config** config) {
  const char* const function = __func__;
  return c::call(function, {{"file", file}, {"config", config}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto read_options, read(function, options));
    PENSTOCK_TRY_ASSIGN(auto made, ConfigFile::read(file, read_options));
    give(std::move(made), config);
    return ok();
  });
}

penstock_error* penstock_config_parse(const char* text, const char* name,
                                      const penstock_config_options* options, penstock_config** config) {
  const char* const function = __func__;
  return c::call(function, {{"text", text}, {"name", name}, {"config", config}}, [&]() -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto read_options, read(function, options));
    PENSTOCK_TRY_ASSIGN(auto made, ConfigFile::parse(text, name, read_options));
    give(std::move(made), config);
    return ok();
  });
}

void penstock_config_free(penstock_config* config) {
  delete config;
}

const char* penstock_config_json(const penstock_config* config) {
  return config == nullptr ? "" : config->json.c_str();
}

penstock_error* penstock_config_notes(const penstock_config* config, penstock_lines** lines) {
  return c::call(__func__, {{"config", config}, {"lines", lines}}, [&]() -> Result<void> {
    c::give(lines, penstock_lines{config->file.config.notes});
    return ok();
  });
}
