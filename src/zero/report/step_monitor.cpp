#include "zero/report/step_monitor.hpp"

#include "base/notes.hpp"
#include "zero/report/event_directory.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <limits>
#include <utility>

namespace penstock::zero {

namespace {

double milliseconds(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

/// As DeepSpeed names and places its timers, whose lines programs read: `bwd_inner` is the trainer's backward, and
/// `bwd_allreduce` what remains of the reductions after it.
std::string times_line(const StepOutcome& outcome) {
  const double inner = milliseconds(outcome.backward), reductions = milliseconds(outcome.gradient_wait);
  std::string line = "time (ms)";
  const auto add = [&](const char* timer, double time) {
    std::array<char, 64> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), time, std::chars_format::fixed, 2);
    line.append(" | ").append(timer).append(": ").append(digits.data(), end.ptr);
  };
  add("fwd", milliseconds(outcome.forward));
  add("bwd", inner + reductions);
  add("bwd_inner", inner);
  add("bwd_allreduce", reductions);
  add("step", milliseconds(outcome.stepping) - reductions);
  return line;
}

struct Moved {
  double read = 0, written = 0;
};
Moved moved(const RunReport& report) {
  Moved sum;
  for (const RunReport::Drive& drive : report.drives) {
    sum.read += static_cast<double>(drive.read.value());
    sum.written += static_cast<double>(drive.written.value());
  }
  return sum;
}

}  // namespace

Result<void> StepMonitor::check(const Config& config, bool leads) {
  if (leads && config.csv_monitor.enabled)
    PENSTOCK_TRY(check_event_directory(config.csv_monitor, "csv_monitor"));
  if (leads && config.tensorboard.enabled)
    PENSTOCK_TRY(check_event_directory(config.tensorboard, "tensorboard"));
  return ok();
}

Result<StepMonitor> StepMonitor::create(const Config& config, bool leads, Log log) {
  if (!log) {
    log = [](std::string_view line) {
      std::fprintf(stderr, "%.*s\n", static_cast<int>(line.size()), line.data());
    };
  }
  StepMonitor monitor(config, leads, std::move(log));
  if (!leads) return monitor;
  if (config.csv_monitor.enabled) {
    PENSTOCK_TRY_ASSIGN(auto writer, make_csv_writer(config.csv_monitor));
    monitor.writers_.push_back(std::move(writer));
  }
  if (config.tensorboard.enabled) {
    PENSTOCK_TRY_ASSIGN(auto writer, make_tensorboard_writer(config.tensorboard));
    monitor.writers_.push_back(std::move(writer));
  }
  return monitor;
}

void StepMonitor::end_step(const StepOutcome& outcome, std::uint64_t samples,
                           const std::function<RunReport()>& make_report) {
  if (!leads_) return;
  if (config_->wall_clock_breakdown) log_(times_line(outcome));
  if (writers_.empty()) return;
  const RunReport report = make_report();
  std::vector<MonitorEvent> events;
  const auto add = [&](const char* name, double value) { events.push_back({name, value, samples}); };
  add("Train/Samples/lr", outcome.learning_rate);
  if (config_->dtype == DType::fp16) add("Train/Samples/loss_scale", outcome.loss_scale);
  if (config_->wall_clock_breakdown) {
    const double inner = milliseconds(outcome.backward), reductions = milliseconds(outcome.gradient_wait);
    add("Train/Samples/elapsed_time_ms_forward", milliseconds(outcome.forward));
    add("Train/Samples/elapsed_time_ms_backward", inner + reductions);
    add("Train/Samples/elapsed_time_ms_backward_inner", inner);
    add("Train/Samples/elapsed_time_ms_backward_allreduce", reductions);
    add("Train/Samples/elapsed_time_ms_step", milliseconds(outcome.stepping) - reductions);
  }
  add("Penstock/gradient_norm", outcome.gradient_norm);
  add("Penstock/skipped", outcome.kind == StepOutcome::Kind::skipped ? 1 : 0);
  add("Penstock/read_bytes", moved(report).read - moved(last_).read);
  add("Penstock/written_bytes", moved(report).written - moved(last_).written);
  add("Penstock/wait_ms", milliseconds(report.stalled - last_.stalled));
  (void)append(events);  // notes() has the error
  last_ = report;
}

Result<void> StepMonitor::write(std::span<const MonitorEvent> events) {
  for (const MonitorEvent& event : events) {
    const bool is_plain = std::none_of(event.name.begin(), event.name.end(),
                                       [](char c) { return static_cast<unsigned char>(c) < 0x20; });
    constexpr std::size_t longest = 251;  // the name of a file has 255 bytes at most, and ends in ".csv"
    const auto refused = [&](const char* what, const char* wanted, std::string got) {
      return Error::invalid_argument("Rank::write_events")
          .object("events[" + std::to_string(&event - events.data()) + "]." + what)
          .wanted(wanted)
          .got(std::move(got))
          .note("nothing was written");
    };
    if (event.name.empty()) return refused("name", "a text", "an empty one");
    if (!is_plain) return refused("name", "a text without control characters", "one that has some");
    if (event.name.size() > longest)
      return refused("name", "at most 251 bytes", std::to_string(event.name.size()));
    constexpr auto last = static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (event.place > last) return refused("place", "at most 2^63 - 1", std::to_string(event.place));
  }
  return append(events);
}

/// A monitor ends with its first error. Returns the first of all.
Result<void> StepMonitor::append(std::span<const MonitorEvent> events) {
  Result<void> all;
  std::erase_if(writers_, [&](const std::unique_ptr<EventWriter>& writer) {
    auto written = writer->write(events);
    if (written) return false;
    notes_.push_back(first_line(written.error()) + "; nothing more is written to it");
    if (all) all = std::move(written);
    return true;
  });
  return all;
}

}  // namespace penstock::zero
