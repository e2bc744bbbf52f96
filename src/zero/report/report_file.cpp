#include "zero/report/report_file.hpp"

#include "base/replace_file.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <array>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>

namespace penstock::zero {

namespace {

constexpr std::array<std::string_view, 3> beginnings = {"rank ", "{\n  \"changes\": [",
                                                        "# HELP penstock_elapsed_seconds "};
constexpr FileKind report_kind{.name = "a report", .beginnings = beginnings};

}  // namespace

Result<void> save_report(const RunReport& report, const std::filesystem::path& file, ReportFormat format) {
  std::string text;
  switch (format) {
    case ReportFormat::text: text = to_text(report); break;
    case ReportFormat::json: text = to_json(report); break;
    case ReportFormat::prometheus: text = to_prometheus(report); break;
    default:
      return Error::invalid_argument("save_report")
          .object("format")
          .wanted("an enumerator")
          .got(unsigned(format));
  }
  return replace_file("save_report", file, text, report_kind);
}

std::filesystem::path name_of_rank(std::filesystem::path file, std::uint32_t rank, std::uint32_t ranks) {
  if (file.empty() || ranks == 1) return file;
  const std::filesystem::path extension = file.extension();
  return file.replace_extension().concat(".rank" + std::to_string(rank)).concat(extension.native());
}

Result<void> check_different(const std::filesystem::path& report, const std::filesystem::path& timeline) {
  if (report.empty() || timeline.empty()) return ok();
  std::error_code unknown;  // then writing them fails, and says why
  const auto one_name = [&](const std::filesystem::path& file) {
    const std::filesystem::path name = without_links(file, unknown);
    return unknown ? name : std::filesystem::weakly_canonical(name, unknown);
  };
  const std::filesystem::path one = one_name(report), other = one_name(timeline);
  std::error_code missing;
  const bool is_linked = std::filesystem::equivalent(report, timeline, missing);
  if (!is_linked && (unknown || one != other)) return ok();
  return Error::invalid_config("Rank::create")
      .object("penstock.timeline_file")
      .wanted("another file than that of penstock.report_file")
      .got(timeline.string());
}

Result<void> check_report_file(const std::filesystem::path& file) {
  return check_replaceable("save_report", file, report_kind);
}

}  // namespace penstock::zero
