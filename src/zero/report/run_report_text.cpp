#include "base/control_character.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <string>
#include <vector>

namespace penstock::zero {

namespace {

/// Columns as wide as their longest cell; the first one is aligned to the left, the others to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> head) { rows_.push_back(std::move(head)); }
  void add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  [[nodiscard]] std::string text() const {
    if (rows_.size() == 1) return {};
    std::vector<std::size_t> widths(rows_.front().size());
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const auto& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const std::string pad(widths[i] - row[i].size(), ' ');
        text += i == 0 ? row[i] + pad : "  " + pad + row[i];
      }
      text.erase(text.find_last_not_of(' ') + 1);
      text += '\n';
    }
    return text + '\n';
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

double seconds(TimePoint time) {
  return std::chrono::duration<double>(time).count();
}

std::string decimal(double value, const char* unit) {
  char text[64];
  std::snprintf(text, sizeof(text), value < 10 ? "%.2f %s" : "%.0f %s", value, unit);
  return text;
}

/// Nothing where there is no prediction.
std::string known(ByteCount bytes) {
  return bytes.is_zero() ? "-" : to_string(bytes);
}

std::string share_of_limit(const RunReport::Drive& drive, TimePoint elapsed) {
  const bool is_known = drive.limit > 0 && elapsed > TimePoint();
  return is_known ? decimal(100 * drive.share_of_limit(elapsed), "%") : "-";
}

ByteCount left_of_endurance(const RunReport::Drive& drive) {
  return drive.endurance - std::min(drive.endurance, drive.written);
}

std::string endurance_left(const RunReport::Drive& drive) {
  return drive.endurance.is_zero() ? "-" : to_string(left_of_endurance(drive));
}

/// How long what is left of the drive's endurance lasts if writing goes on like that.
std::string lifetime(const RunReport::Drive& drive, double elapsed) {
  if (drive.endurance.is_zero() || drive.written.is_zero() || elapsed <= 0) return "-";
  const double per_second = static_cast<double>(drive.written.value()) / elapsed;
  const double left = static_cast<double>(left_of_endurance(drive).value()) / per_second;
  if (left >= 86'400) return decimal(left / 86'400, "days");
  return left >= 3600 ? decimal(left / 3600, "hours") : decimal(left / 60, "minutes");
}

std::string changes_text(const RunReport& report) {
  std::string text;
  for (const RunReport::Change& change : report.changes) {
    text += text.empty() ? "would help most: " : ", then ";
    text += change.what + " (" + decimal(100 * change.saves, "%") + " less time)";
  }
  if (report.changes_note.empty()) return text;
  text += text.empty() ? "what would help: " : "; ";
  return text + report.changes_note + '\n';
}

}  // namespace

std::string to_text(const RunReport& report) {
  const double elapsed = seconds(report.elapsed);
  std::string text = "rank " + std::to_string(report.rank);
  if (report.steps > 0)
    text += ", " + std::to_string(report.steps) + (report.steps == 1 ? " step" : " steps");
  if (elapsed > 0) text += ", " + decimal(elapsed, "s");
  text += ", callers waited " + decimal(seconds(report.stalled), "s");
  if (elapsed > 0) text += " (" + decimal(100 * seconds(report.stalled) / elapsed, "%") + ")";
  if (!report.resident_peak.is_zero()) text += ", peak of the process " + to_string(report.resident_peak);
  text += "\n\n";

  Table stalls({"callers waited for", "time", "of the run"});
  for (const auto& one : report.stalls) {
    stalls.add({std::string(to_string(one.cause)), decimal(seconds(one.time), "s"),
                elapsed > 0 ? decimal(100 * seconds(one.time) / elapsed, "%") : "-"});
  }
  Table memory({"memory", "predicted", "peak", "now"});
  for (const auto& one : report.memory) {
    memory.add({std::string(to_string(one.tier)) + ", " + std::string(to_string(one.purpose)),
                known(one.predicted), to_string(one.peak), to_string(one.held)});
  }
  Table traffic({"disk traffic", "read", "predicted", "written", "predicted"});
  for (const auto& one : report.traffic) {
    traffic.add({std::string(to_string(one.purpose)), to_string(one.read), known(one.predicted_read),
                 to_string(one.written), known(one.predicted_written)});
  }
  const auto measured = [&](const std::string& value) {
    return report.step_traffic == RunReport::StepTraffic() ? std::string("-") : value;
  };
  const auto predicted = [&](const std::string& value) {
    return report.predicted_step_traffic == RunReport::StepTraffic() ? std::string("-") : value;
  };
  Table steps({"disk traffic, in a step", "read", "predicted", "written", "predicted"});
  for (const auto& one : report.traffic) {
    const RunReport::StepTraffic &step = one.step, &wanted = one.predicted_step, none;
    if (step == none && wanted == none) continue;
    steps.add({std::string(to_string(one.purpose)), measured(to_string(step.read)),
               predicted(to_string(wanted.read)), measured(to_string(step.written)),
               predicted(to_string(wanted.written))});
  }
  Table drives({"drive", "engine", "read", "written", "busy", "of its limit", "requests", "repeated",
                "99 % within", "endurance left", "lasts"});
  for (const auto& one : report.drives) {
    drives.add({escape_control_characters(one.directory), one.engine, to_string(one.read),
                to_string(one.written), elapsed > 0 ? decimal(100 * seconds(one.busy) / elapsed, "%") : "-",
                share_of_limit(one, report.elapsed), std::to_string(one.requests),
                std::to_string(one.repeated), decimal(1e3 * seconds(one.latency_99), "ms"),
                endurance_left(one), lifetime(one, elapsed)});
  }
  Table drive_steps({"drive, in a step", "read", "predicted", "written", "predicted", "busy", "predicted"});
  for (const auto& one : report.drives) {
    const RunReport::DriveStep &step = one.step, &wanted = one.predicted_step;
    if (step == RunReport::DriveStep() && wanted == RunReport::DriveStep()) continue;
    const auto busy = [](TimePoint time) { return decimal(1e3 * seconds(time), "ms"); };
    drive_steps.add({escape_control_characters(one.directory), measured(to_string(step.read)),
                     predicted(to_string(wanted.read)), measured(to_string(step.written)),
                     predicted(to_string(wanted.written)), measured(busy(step.busy)),
                     predicted(busy(wanted.busy))});
  }
  text += stalls.text() + memory.text() + traffic.text() + steps.text() + drives.text() + drive_steps.text() +
          changes_text(report);
  if (text.ends_with("\n\n")) text.pop_back();
  return text;
}

}  // namespace penstock::zero
