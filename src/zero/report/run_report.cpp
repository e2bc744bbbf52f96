#include <penstock/zero/report/run_report.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <limits>
#include <string>

namespace penstock::zero {

using tiers::Purpose;
using tiers::Tier;

double RunReport::Drive::share_of_limit(TimePoint elapsed) const {
  const double seconds = std::chrono::duration<double>(elapsed).count();
  if (!(limit > 0) || seconds <= 0) return 0;
  return (static_cast<double>(read.value()) + static_cast<double>(written.value())) / seconds / limit;
}

namespace {

/// VmHWM of proc_pid_status(5).
ByteCount peak_resident_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string key; status >> key; status.ignore(std::numeric_limits<std::streamsize>::max(), '\n')) {
    std::uint64_t kib = 0;
    if (key == "VmHWM:" && status >> kib) return ByteCount(kib * 1024);
  }
  return {};
}

RunReport::Drive drive_of(const swap::PathReport& path, const ReportFacts& all) {
  const auto known = std::ranges::find(all.drives, path.directory, &ReportFacts::Drive::directory);
  const ReportFacts::Drive facts = known == all.drives.end()
                                       ? ReportFacts::Drive{path.directory, path.rate_limit, path.endurance}
                                       : *known;
  const tiers::FileCounters& counters = path.counters;
  return {.directory = path.directory.string(),
          .engine = path.engine,
          .read = counters.bytes_read,
          .written = counters.bytes_written,
          .requests = counters.requests,
          .repeated = counters.retries + counters.short_transfers + counters.subdivided,
          .latency_99 = counters.latency.percentile(0.99),
          .busy = path.busy,
          .limit = std::isfinite(facts.limit) ? facts.limit : 0,
          .endurance = facts.endurance};
}

}  // namespace

RunReport report_of(swap::Runtime& runtime, const ReportFacts& facts) {
  RunReport report{.rank = facts.rank,
                   .elapsed = facts.elapsed,
                   .stalled = runtime.stall_time(),
                   .resident_peak = peak_resident_memory()};
  for (std::size_t c = 0; c < swap::stall_cause_count; ++c) {
    const auto cause = swap::StallCause(c);
    if (const TimePoint time = runtime.stall_time(cause); time > TimePoint())
      report.stalls.push_back({cause, time});
  }
  const tiers::Ledger& ledger = runtime.ledger();
  for (std::size_t t = 0; t < tiers::tier_count; ++t) {
    for (std::size_t p = 0; p < tiers::purpose_count; ++p) {
      const auto line = ledger.line(Tier(t), Purpose(p));
      if (line.predicted.is_zero() && line.peak.is_zero()) continue;
      report.memory.push_back({Tier(t), Purpose(p), line.predicted, line.peak, line.held});
    }
  }
  for (std::size_t p = 0; p < tiers::purpose_count; ++p) {
    const auto moved = ledger.traffic(Purpose(p));
    const bool is_read = !moved.read.is_zero() || !moved.predicted_read.is_zero();
    if (!is_read && moved.written.is_zero() && moved.predicted_written.is_zero()) continue;
    report.traffic.push_back({.purpose = Purpose(p),
                              .read = moved.read,
                              .predicted_read = moved.predicted_read,
                              .written = moved.written,
                              .predicted_written = moved.predicted_written});
  }
  for (const swap::PathReport& path : runtime.paths()) report.drives.push_back(drive_of(path, facts));
  return report;
}

ReportFormat report_format_of(const std::filesystem::path& file) {
  const std::filesystem::path extension = file.extension();
  if (extension == ".json") return ReportFormat::json;
  return extension == ".prom" ? ReportFormat::prometheus : ReportFormat::text;
}

}  // namespace penstock::zero
