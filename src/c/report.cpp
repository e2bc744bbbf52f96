#include "c/report.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <cmath>
#include <sstream>
#include <string>

namespace penstock::c {

namespace {

Result<void> check_limit(const char* function, double limit) {
  if (std::isfinite(limit) && limit >= 0) return ok();
  return Error::invalid_argument(function)
      .object("options.drives.limit")
      .wanted("bytes a second, finite and 0 or more")
      .got(std::to_string(limit));
}

std::string text_of(const zero::RunReport& report, zero::ReportFormat format) {
  switch (format) {
    case zero::ReportFormat::json: return to_json(report);
    case zero::ReportFormat::prometheus: return to_prometheus(report);
    default: return to_text(report);
  }
}

}  // namespace

Result<penstock_lines> report_lines(const char* function, swap::Runtime& runtime,
                                    std::optional<std::uint32_t> rank,
                                    const penstock_report_options* options) {
  PENSTOCK_TRY_ASSIGN(const auto from, read_struct(function, "options", options));
  zero::ReportFacts facts{.rank = rank.value_or(from.rank)};
  PENSTOCK_TRY_ASSIGN(facts.elapsed,
                      duration(function, "options.elapsed_seconds", from.elapsed_seconds, TimePoint()));
  PENSTOCK_TRY_ASSIGN(const auto format,
                      enumerator<zero::ReportFormat>(function, "options.format", from.format,
                                                     PENSTOCK_REPORT_PROMETHEUS + 1));
  const auto add = [&](const penstock_report_drive* one) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto drive, read_struct(function, "options.drives", one));
    PENSTOCK_TRY(check_not_null(function, {{"options.drives.directory", drive.directory}}));
    PENSTOCK_TRY(check_limit(function, drive.limit));
    facts.drives.push_back({drive.directory, drive.limit, ByteCount(drive.endurance)});
    return ok();
  };
  PENSTOCK_TRY(for_each_struct(function, "options.drives", from.drives, from.drive_count, add));
  std::istringstream text(text_of(zero::report_of(runtime, facts), format));
  penstock_lines lines;
  for (std::string line; std::getline(text, line);) lines.lines.push_back(line);
  return lines;
}

}  // namespace penstock::c
