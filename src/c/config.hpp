#pragma once

#include "c/handles.hpp"

#include <penstock/zero/config/config_file.hpp>

struct penstock_config {
  penstock::zero::ConfigFile file;
  std::string json;
};
