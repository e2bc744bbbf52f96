#include "base/utf8.hpp"

#include <penstock/zero/report/run_report.hpp>

#include <array>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

// https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format
namespace penstock::zero {

namespace {

/// In UTF-8, as the format wants it.
std::string escaped(std::string_view value) {
  std::string text;
  for (const char c : to_utf8(value)) {
    if (c == '\\' || c == '"') text += '\\';
    text += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return text;
}

std::string number(double value) {
  if (!std::isfinite(value)) return "0";
  std::array<char, 32> digits{};
  return {digits.data(), std::to_chars(digits.data(), digits.data() + digits.size(), value).ptr};
}
std::string number(ByteCount bytes) {
  return std::to_string(bytes.value());
}
std::string number(std::uint64_t count) {
  return std::to_string(count);
}
std::string number(TimePoint time) {
  return number(std::chrono::duration<double>(time).count());
}

using Labels = std::vector<std::pair<const char*, std::string>>;

/// Samples of one metric follow each other, after their help and type.
class Metrics {
 public:
  explicit Metrics(std::uint32_t rank) : rank_(std::to_string(rank)) {}

  void begin(const char* name, const char* type, const char* help) {
    name_ = name;
    text_ += std::string("# HELP ") + name + ' ' + help + "\n# TYPE " + name + ' ' + type + '\n';
  }
  void sample(const Labels& labels, const std::string& value) {
    text_ += name_;
    text_ += "{rank=\"" + rank_ + '"';
    for (const auto& [name, label] : labels) {
      text_ += ',';
      text_ += name;
      text_ += "=\"" + escaped(label) + '"';
    }
    text_ += "} " + value + '\n';
  }
  void one(const char* name, const char* type, const char* help, const std::string& value) {
    begin(name, type, help);
    sample({}, value);
  }
  template <class Items, class LabelsOf, class Value>
  void each(const char* name, const char* type, const char* help, const Items& items,
            const LabelsOf& labels_of, Value value) {
    if (items.empty()) return;
    begin(name, type, help);
    for (std::size_t i = 0; i < items.size(); ++i)
      sample(labels_of(items[i], i), number(std::invoke(value, items[i])));
  }
  [[nodiscard]] std::string text() && { return std::move(text_); }

 private:
  const std::string rank_;
  std::string name_, text_;
};

Labels labels_of_memory(const RunReport::Memory& one, std::size_t) {
  return {{"tier", std::string(to_string(one.tier))}, {"purpose", std::string(to_string(one.purpose))}};
}
Labels labels_of_stall(const RunReport::Stall& one, std::size_t) {
  return {{"cause", std::string(to_string(one.cause))}};
}
Labels labels_of_traffic(const RunReport::Traffic& one, std::size_t) {
  return {{"purpose", std::string(to_string(one.purpose))}};
}
/// Two paths may be in one directory.
Labels labels_of_drive(const RunReport::Drive& one, std::size_t index) {
  return {{"path", std::to_string(index)}, {"directory", one.directory}};
}

void add_drives(Metrics& metrics, const RunReport& report) {
  using Drive = RunReport::Drive;
  using Step = RunReport::DriveStep;
  const auto drives = [&](const char* name, const char* type, const char* help, auto value) {
    metrics.each(name, type, help, report.drives, labels_of_drive, value);
  };
  drives("penstock_drive_read_bytes_total", "counter", "Bytes read from the drive.", &Drive::read);
  drives("penstock_drive_written_bytes_total", "counter", "Bytes written to the drive.", &Drive::written);
  drives("penstock_drive_requests_total", "counter", "Requests to the drive.", &Drive::requests);
  drives("penstock_drive_repeated_requests_total", "counter",
         "Requests that were repeated, whole or in parts, after an error or a short transfer.",
         &Drive::repeated);
  drives("penstock_drive_latency_99_seconds", "gauge", "The time that 99 % of the requests take at most.",
         &Drive::latency_99);
  drives("penstock_drive_busy_seconds_total", "counter", "The time in which a request was in flight.",
         &Drive::busy);
  drives("penstock_drive_limit_bytes_per_second", "gauge",
         "The rank's share of its measured rate of reads and writes; 0: not known.", &Drive::limit);
  drives("penstock_drive_endurance_bytes", "gauge",
         "The rank's share of the bytes that its maker lets be written to it; 0: not known.",
         &Drive::endurance);
  const auto of_step = [&](const char* name, const char* help, RunReport::DriveStep Drive::*step,
                           auto member) {
    drives(name, "gauge", help, [=](const Drive& drive) { return drive.*step.*member; });
  };
  of_step("penstock_drive_step_read_bytes", "What a step has read from the drive, a mean; 0: not known.",
          &Drive::step, &Step::read);
  of_step("penstock_drive_step_written_bytes", "What a step has written to the drive, a mean; 0: not known.",
          &Drive::step, &Step::written);
  of_step("penstock_drive_step_busy_seconds",
          "How long a request was in flight in a step, a mean; 0: not known.", &Drive::step, &Step::busy);
  of_step("penstock_drive_predicted_step_read_bytes",
          "What a step reads from the drive as simulated; 0: not known.", &Drive::predicted_step,
          &Step::read);
  of_step("penstock_drive_predicted_step_written_bytes",
          "What a step writes to the drive as simulated; 0: not known.", &Drive::predicted_step,
          &Step::written);
  of_step("penstock_drive_predicted_step_busy_seconds",
          "How long the drive is busy in a step as simulated; 0: not known.", &Drive::predicted_step,
          &Step::busy);
}

}  // namespace

std::string to_prometheus(const RunReport& report) {
  using Memory = RunReport::Memory;
  using Traffic = RunReport::Traffic;
  using StepTraffic = RunReport::StepTraffic;
  Metrics metrics(report.rank);
  metrics.one("penstock_elapsed_seconds", "gauge", "The time of the run.", number(report.elapsed));
  metrics.one("penstock_steps_total", "counter", "The steps that have ended.", number(report.steps));
  metrics.one("penstock_step_seconds", "gauge", "The mean time of a step; 0: not known.",
              number(report.step));
  metrics.one("penstock_predicted_step_seconds", "gauge", "What a step takes as simulated; 0: not known.",
              number(report.predicted_step));
  metrics.one("penstock_step_read_bytes", "gauge", "What a step has read from drives, a mean.",
              number(report.step_traffic.read));
  metrics.one("penstock_step_written_bytes", "gauge", "What a step has written to drives, a mean.",
              number(report.step_traffic.written));
  metrics.one("penstock_predicted_step_read_bytes", "gauge",
              "What a step reads from drives as simulated; 0: not known.",
              number(report.predicted_step_traffic.read));
  metrics.one("penstock_predicted_step_written_bytes", "gauge",
              "What a step writes to drives as simulated; 0: not known.",
              number(report.predicted_step_traffic.written));
  metrics.one("penstock_stall_seconds_total", "counter",
              "The time that callers have waited, a sum over threads.", number(report.stalled));
  metrics.each("penstock_stall_cause_seconds_total", "counter", "The same by what they have waited for.",
               report.stalls, labels_of_stall, &RunReport::Stall::time);
  metrics.one("penstock_resident_peak_bytes", "gauge",
              "The peak of the process's resident memory, of all its ranks together.",
              number(report.resident_peak));
  const auto memory = [&](const char* name, const char* help, ByteCount Memory::*bytes) {
    metrics.each(name, "gauge", help, report.memory, labels_of_memory, bytes);
  };
  memory("penstock_memory_bytes", "Bytes that are held now.", &Memory::held);
  memory("penstock_memory_peak_bytes", "The most bytes that were held at one time.", &Memory::peak);
  memory("penstock_memory_predicted_bytes", "The plan's prediction of the peak; 0: none.",
         &Memory::predicted);
  const auto traffic = [&](const char* name, const char* type, const char* help, auto bytes) {
    metrics.each(name, type, help, report.traffic, labels_of_traffic, bytes);
  };
  const auto of_step = [&](const char* name, const char* help, StepTraffic Traffic::*step,
                           ByteCount StepTraffic::*bytes) {
    traffic(name, "gauge", help, [=](const Traffic& one) { return one.*step.*bytes; });
  };
  traffic("penstock_read_bytes_total", "counter", "Bytes read from drives.", &Traffic::read);
  traffic("penstock_written_bytes_total", "counter", "Bytes written to drives.", &Traffic::written);
  traffic("penstock_predicted_read_bytes", "gauge", "The prediction of the bytes read so far; 0: none.",
          &Traffic::predicted_read);
  traffic("penstock_predicted_written_bytes", "gauge", "The prediction of the bytes written so far; 0: none.",
          &Traffic::predicted_written);
  of_step("penstock_purpose_step_read_bytes", "What a step has read for the purpose, a mean; 0: not known.",
          &Traffic::step, &StepTraffic::read);
  of_step("penstock_purpose_step_written_bytes",
          "What a step has written for the purpose, a mean; 0: not known.", &Traffic::step,
          &StepTraffic::written);
  of_step("penstock_purpose_predicted_step_read_bytes",
          "What a step reads for the purpose as simulated; 0: not known.", &Traffic::predicted_step,
          &StepTraffic::read);
  of_step("penstock_purpose_predicted_step_written_bytes",
          "What a step writes for the purpose as simulated; 0: not known.", &Traffic::predicted_step,
          &StepTraffic::written);
  add_drives(metrics, report);
  return std::move(metrics).text();
}

}  // namespace penstock::zero
