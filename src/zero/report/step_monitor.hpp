#pragma once

#include "zero/report/event_writer.hpp"

#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/report/monitor_event.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace penstock::zero {

/// Writes the figures of each step to the monitors of a configuration, and logs its times.
///
/// Used by the trainer's thread.
class StepMonitor {
 public:
  using Log = std::function<void(std::string_view line)>;
  /// Judges the monitors' directories, and makes nothing. `leads`: whether it is rank 0, which alone writes.
  [[nodiscard]] static Result<void> check(const Config& config, bool leads);
  /// `config` outlives it. Empty `log`: standard error.
  ///
  /// Errors: those of making directories and files.
  [[nodiscard]] static Result<StepMonitor> create(const Config& config, bool leads, Log log);

  /// After a step. `samples`: that all ranks have trained with so far, with those before a resume. `report`: makes that
  /// of the rank, where it is needed.
  void end_step(const StepOutcome& outcome, std::uint64_t samples, const std::function<RunReport()>& report);
  /// As Rank::write_events().
  Result<void> write(std::span<const MonitorEvent> events);
  void log(std::string_view line) const { log_(line); }
  /// A line for each monitor that has ended with an error.
  [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

 private:
  StepMonitor(const Config& config, bool leads, Log log)
      : config_(&config), leads_(leads), log_(std::move(log)) {}
  Result<void> append(std::span<const MonitorEvent> events);

  const Config* config_;
  bool leads_;
  Log log_;
  std::vector<std::unique_ptr<EventWriter>> writers_;
  std::vector<std::string> notes_;
  RunReport last_;  // of the step before
};

}  // namespace penstock::zero
