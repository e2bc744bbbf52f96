#pragma once

#include "c/handles.hpp"

#include <penstock/c/process_group.h>
#include <penstock/zero/comm/process_group.hpp>

#include <memory>

struct penstock_process_group {
  std::shared_ptr<penstock::zero::ProcessGroup> group;
  penstock::c::HandleProcess process = {};
};
