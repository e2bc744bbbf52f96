#pragma once

#include "c/handles.hpp"

#include <penstock/c/runtime.h>
#include <penstock/swap/runtime.hpp>

#include <cstdint>
#include <optional>

namespace penstock::c {

/// `rank`: instead of that of the options. Errors: invalid_argument, naming the member of `options`.
[[nodiscard]] Result<penstock_lines> report_lines(const char* function, swap::Runtime& runtime,
                                                  std::optional<std::uint32_t> rank,
                                                  const penstock_report_options* options);

}  // namespace penstock::c
