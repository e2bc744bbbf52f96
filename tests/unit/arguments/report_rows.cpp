#include "unit/arguments/bad_arguments.hpp"

#include "kit/scratch_directory.hpp"

#include <penstock/base/on_signal.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <chrono>
#include <csignal>
#include <limits>
#include <string>
#include <utility>
#include <vector>

namespace penstock::test {
namespace {

using namespace zero;

/// Reports that no run has, of which each format makes something.
std::vector<std::pair<std::string, RunReport>> odd_reports() {
  const ByteCount most(std::numeric_limits<std::uint64_t>::max());
  const RunReport full{.elapsed = std::chrono::seconds(1),
                       .stalls = {{}},
                       .memory = {{}},
                       .traffic = {{}},
                       .drives = {{.read = 1_GiB, .written = 1_GiB, .limit = 1, .endurance = 1_GiB}}};
  std::vector<std::pair<std::string, RunReport>> reports{{"empty", {}}};
  const auto with = [&](const char* wrong, auto change) {
    reports.emplace_back(wrong, full);
    change(reports.back().second);
  };
  with("tier", [](RunReport& r) { r.memory[0].tier = unknown<tiers::Tier>; });
  with("cause", [](RunReport& r) { r.stalls[0].cause = unknown<swap::StallCause>; });
  with("saves", [](RunReport& r) { r.changes = {{"\xff\n", std::numeric_limits<double>::quiet_NaN()}}; });
  with("purpose", [](RunReport& r) { r.memory[0].purpose = unknown<tiers::Purpose>; });
  with("purpose of traffic", [](RunReport& r) { r.traffic[0].purpose = unknown<tiers::Purpose>; });
  with("bytes", [=](RunReport& r) { r.drives[0].read = r.drives[0].written = most; });
  with("endurance", [=](RunReport& r) { r.drives[0].endurance = most; });
  with("limit", [](RunReport& r) { r.drives[0].limit = -1; });
  with("limit", [](RunReport& r) { r.drives[0].limit = std::numeric_limits<double>::quiet_NaN(); });
  with("limit", [](RunReport& r) { r.drives[0].limit = std::numeric_limits<double>::infinity(); });
  with("elapsed", [](RunReport& r) { r.elapsed = TimePoint::min(); });
  with("elapsed", [](RunReport& r) { r.elapsed = TimePoint::max(); });
  with("stalled", [](RunReport& r) { r.stalled = TimePoint::min(); });
  with("directory", [](RunReport& r) { r.drives[0].directory = std::string("a\0b\n\"\\\xff", 7); });
  return reports;
}

}  // namespace

void add_report_rows(BadArguments& bad) {
  for (const auto& [wrong, report] : odd_reports()) {
    bad("to_text", "report", wrong, [=] { return (void)to_text(report), harmless(); });
    bad("to_json", "report", wrong, [=] { return (void)to_json(report), harmless(); });
    bad("to_prometheus", "report", wrong, [=] { return (void)to_prometheus(report), harmless(); });
  }
  bad("report_of", "facts.drives", "more than paths", [] {
    const auto runtime = swap::Runtime::create({.host_budget = 64_KiB}).value();
    return expect(report_of(*runtime, {.drives = {{"a"}, {"a"}}}).drives.empty(), "no drives");
  });
  for (const TimePoint elapsed : {TimePoint(), TimePoint::min()}) {
    bad("Drive::share_of_limit", "elapsed", "not above 0", [=] {
      return expect(RunReport::Drive{.read = 1_GiB, .limit = 1}.share_of_limit(elapsed) == 0, "not known");
    });
  }
  bad("save_report", "format", "unknown", [] {
    const ScratchDirectory scratch;
    return all({refused(save_report({}, scratch.path() / "report", unknown<ReportFormat>), "format"),
                expect(scratch.entry_count() == 0, "no file")});
  });
  for (const char* name : {"", ".", "..", "a/", ".json"}) {
    bad("report_format_of", "file", name,
        [=] { return expect(report_format_of(name) == ReportFormat::text, "another format"); });
  }
  bad("save_report", "file", "empty",
      [] { return refused(save_report({}, "", ReportFormat::text), "file"); });
  for (const int signal : {SIGKILL, SIGSEGV, 0, -1, 1000}) {
    bad("OnSignal::create", "signal", std::to_string(signal),
        [=] { return refused(OnSignal::create(signal, [] {}), "signal"); });
  }
  bad("OnSignal::create", "call", "empty", [] { return refused(OnSignal::create(SIGUSR1, {}), "call"); });
}

}  // namespace penstock::test
