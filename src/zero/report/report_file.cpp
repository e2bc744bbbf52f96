#include "zero/report/report_file.hpp"

#include "base/replace_file.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <string>
#include <system_error>
#include <utility>

namespace penstock::zero {

Result<void> save_report(const RunReport& report, const std::filesystem::path& file, ReportFormat format) {
  std::string text;
  switch (format) {
    case ReportFormat::text: text = to_text(report); break;
    case ReportFormat::json: text = to_json(report); break;
    case ReportFormat::prometheus: text = to_prometheus(report); break;
    default: return Error::invalid_argument("save_report").object("format").reason("there is no such format");
  }
  return replace_file("save_report", file, text);
}

std::filesystem::path name_of_rank(std::filesystem::path file, std::uint32_t rank, std::uint32_t ranks) {
  if (file.empty() || ranks == 1) return file;
  const std::filesystem::path extension = file.extension();
  return file.replace_extension().concat(".rank" + std::to_string(rank)).concat(extension.native());
}

Result<void> check_different(const std::filesystem::path& report, const std::filesystem::path& timeline) {
  if (report.empty() || timeline.empty()) return ok();
  std::error_code unknown;
  const auto one_name = [&](const std::filesystem::path& file) {
    return std::filesystem::weakly_canonical(without_links(file, unknown), unknown);
  };
  if (one_name(report) != one_name(timeline)) return ok();
  return Error::invalid_config("Rank::create")
      .object("penstock.timeline_file")
      .wanted("another file than that of penstock.report_file")
      .got(timeline.string());
}

Result<void> check_report_file(const std::filesystem::path& file) {
  return check_replaceable("save_report", file);
}

}  // namespace penstock::zero
