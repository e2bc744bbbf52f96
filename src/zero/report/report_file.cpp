#include "zero/report/report_file.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <unistd.h>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <system_error>

namespace penstock::zero {

namespace {

/// What a report is written to before it replaces `file`.
struct Unfinished {
  std::filesystem::path file, name;
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream{nullptr, &std::fclose};
};

Error failed(int code, const std::filesystem::path& file) {
  return Error::from_errno("save_report", code).object(file.string());
}

/// The absolute name of the file to which it leads, also of a link whose file is not there yet.
std::filesystem::path without_links(const std::filesystem::path& file, std::error_code& error) {
  std::filesystem::path name = std::filesystem::absolute(file, error);
  for (int links = 0; links < 40 && !error && std::filesystem::is_symlink(name); ++links)
    name = name.parent_path() / std::filesystem::read_symlink(name, error);
  return name;
}

/// Other threads and processes may write the same file.
Result<Unfinished> begin_beside(const std::filesystem::path& file) {
  if (!file.has_filename())
    return Error::invalid_argument("save_report")
        .object("file")
        .reason("it names no file")
        .got(file.string());
  std::error_code error;
  Unfinished unfinished{.file = without_links(file, error)};
  if (error) return failed(error.value(), file);
  const auto there = std::filesystem::status(unfinished.file, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there)) {
    return Error::invalid_argument("save_report")
        .object(file.string())
        .wanted("a file, which is replaced")
        .got(std::filesystem::is_directory(there) ? "a directory" : "a device, a pipe or a socket");
  }
  static std::atomic<std::uint64_t> count = 0;
  unfinished.name = unfinished.file;
  unfinished.name += '.' + std::to_string(::getpid()) + '.' + std::to_string(count++) + ".new";
  errno = 0;
  unfinished.stream.reset(std::fopen(unfinished.name.c_str(), "wxe"));
  if (unfinished.stream == nullptr) return failed(errno, file);
  if (std::filesystem::exists(there))
    std::filesystem::permissions(unfinished.name, there.permissions(), error);
  return unfinished;
}

}  // namespace

Result<void> save_report(const RunReport& report, const std::filesystem::path& file, ReportFormat format) {
  std::string text;
  switch (format) {
    case ReportFormat::text: text = to_text(report); break;
    case ReportFormat::json: text = to_json(report); break;
    case ReportFormat::prometheus: text = to_prometheus(report); break;
    default: return Error::invalid_argument("save_report").object("format").reason("there is no such format");
  }
  PENSTOCK_TRY_ASSIGN(Unfinished unfinished, begin_beside(file));
  errno = 0;
  const bool is_whole = std::fwrite(text.data(), 1, text.size(), unfinished.stream.get()) == text.size();
  const bool is_written = std::fclose(unfinished.stream.release()) == 0 && is_whole;
  std::error_code error(is_written ? 0 : errno == 0 ? EIO : errno, std::system_category());
  if (!error) std::filesystem::rename(unfinished.name, unfinished.file, error);
  if (!error) return ok();
  std::error_code ignored;
  std::filesystem::remove(unfinished.name, ignored);
  return failed(error.value(), file);
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
  PENSTOCK_TRY_ASSIGN(const Unfinished unfinished, begin_beside(file));
  std::error_code ignored;
  std::filesystem::remove(unfinished.name, ignored);
  return ok();
}

}  // namespace penstock::zero
