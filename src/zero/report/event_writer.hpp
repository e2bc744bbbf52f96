#pragma once

#include <penstock/base/result.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/report/monitor_event.hpp>

#include <memory>
#include <span>
#include <string>

namespace penstock::zero {

/// Adds events to the files of one monitor. Used by one thread.
class EventWriter {
 public:
  EventWriter() = default;
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;
  virtual ~EventWriter() = default;

  /// Another program can read the events then. Errors: those of the file.
  virtual Result<void> write(std::span<const MonitorEvent> events) = 0;
};

/// One file for each name of events, `Train_Samples_lr.csv` for Train/Samples/lr: lines `step,lr` and `8,0.001`, as
/// DeepSpeed's csv_monitor. Events are added to a file that is there, without another first line.
///
/// Errors: those of making output_path/job_name.
[[nodiscard]] Result<std::unique_ptr<EventWriter>> make_csv_writer(const MonitorConfig& monitor);

/// A file of TensorBoard's events in output_path/job_name, as torch's SummaryWriter begins one.
///
/// Errors: those of making the directory and the file.
[[nodiscard]] Result<std::unique_ptr<EventWriter>> make_tensorboard_writer(const MonitorConfig& monitor);

}  // namespace penstock::zero
