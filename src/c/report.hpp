#pragma once

#include "c/handles.hpp"

#include <penstock/c/runtime.h>
#include <penstock/zero/report/run_report.hpp>

#include <functional>

namespace penstock::c {

/// Makes a report of a runtime or of an engine's rank; `rank` is that of the options.
using MakeReport = std::function<zero::RunReport(std::uint32_t rank, bool with_changes)>;

/// Errors: invalid_argument, naming the member of `options`.
[[nodiscard]] Result<penstock_lines> report_lines(const char* function, const MakeReport& make,
                                                  const penstock_report_options* options);
/// Errors: the same, and those of zero::save_report().
Result<void> save_report(const char* function, const MakeReport& make, const penstock_report_options* options,
                         const char* file);

}  // namespace penstock::c
