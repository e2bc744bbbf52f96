#pragma once

#include "zero/config/reader.hpp"

#include <penstock/zero/config/config_file.hpp>

#include <vector>

namespace penstock::zero::config {

/// Where each value of `now` comes from. `read` has what the file says, before the rules between keys.
[[nodiscard]] std::vector<KeyOrigin> origins_of(const Config& now, const Draft& read, const Reader& reader);

/// Sets KeyOrigin::follows_from of the derived origins: the keys of the file without each of which the value would be
/// another one. Reads the file again without each of its keys.
void name_sources(std::vector<KeyOrigin>& origins, const Json::Value& root, const LineIndex& lines,
                  const Reader& reader, const ConfigFile::Options& options);

}  // namespace penstock::zero::config
