#include "c/report.hpp"

#include <sstream>
#include <string>
#include <utility>
#include <vector>

template <>
inline constexpr std::size_t penstock::c::first_size<penstock_report_options> =
    offsetof(penstock_report_options, with_changes);

namespace penstock::c {

namespace {

std::string text_of(const zero::RunReport& report, zero::ReportFormat format) {
  switch (format) {
    case zero::ReportFormat::json: return to_json(report);
    case zero::ReportFormat::prometheus: return to_prometheus(report);
    default: return to_text(report);
  }
}

struct Asked {
  zero::RunReport report;
  zero::ReportFormat format{};
};

Result<Asked> read(const char* function, const MakeReport& make, const penstock_report_options* options) {
  PENSTOCK_TRY_ASSIGN(const auto from, read_struct(function, "options", options));
  PENSTOCK_TRY_ASSIGN(const TimePoint elapsed,
                      duration(function, "options.elapsed_seconds", from.elapsed_seconds, TimePoint()));
  PENSTOCK_TRY_ASSIGN(const auto format,
                      enumerator<zero::ReportFormat>(function, "options.format", from.format,
                                                     PENSTOCK_REPORT_PROMETHEUS + 1));
  std::vector<zero::ReportFacts::Drive> drives;
  const auto add = [&](const penstock_report_drive* one) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto drive, read_struct(function, "options.drives", one));
    PENSTOCK_TRY(check_not_null(function, {{"options.drives.directory", drive.directory}}));
    PENSTOCK_TRY(check_limit(function, "options.drives.limit", drive.limit));
    drives.push_back({drive.directory, drive.limit, ByteCount(drive.endurance)});
    return ok();
  };
  PENSTOCK_TRY(for_each_struct(function, "options.drives", from.drives, from.drive_count, add));
  Asked asked{make(from.rank, from.with_changes != 0), format};
  if (elapsed > TimePoint()) asked.report.elapsed = elapsed;
  for (const zero::ReportFacts::Drive& known : drives) {
    for (zero::RunReport::Drive& drive : asked.report.drives) {
      if (drive.directory != known.directory.string()) continue;
      drive.limit = known.limit;
      drive.endurance = known.endurance;
    }
  }
  return asked;
}

}  // namespace

Result<penstock_lines> report_lines(const char* function, const MakeReport& make,
                                    const penstock_report_options* options) {
  PENSTOCK_TRY_ASSIGN(const Asked asked, read(function, make, options));
  std::istringstream text(text_of(asked.report, asked.format));
  penstock_lines lines;
  for (std::string line; std::getline(text, line);) lines.lines.push_back(line);
  return lines;
}

Result<void> save_report(const char* function, const MakeReport& make, const penstock_report_options* options,
                         const char* file) {
  PENSTOCK_TRY_ASSIGN(const Asked asked, read(function, make, options));
  return zero::save_report(asked.report, file, asked.format);
}

}  // namespace penstock::c
