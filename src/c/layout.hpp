#pragma once

#include "c/handles.hpp"

#include <penstock/c/layout.h>
#include <penstock/zero/layout/model_layout.hpp>

struct penstock_layout {
  penstock::zero::ModelLayout model;
};

namespace penstock::c {

/// Errors: those of read_struct(); invalid_argument, for unknown members that are given.
[[nodiscard]] Result<zero::OptimizerGroup> read_group(const char* function,
                                                      const penstock_group_options* given);

}  // namespace penstock::c
