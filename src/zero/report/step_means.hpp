#pragma once

#include <penstock/swap/runtime.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

namespace penstock::zero {

/// What a step moves, in the mean of the steps after the first one. Safe from any thread.
class StepMeans {
 public:
  /// A step has ended.
  void end_step(swap::Runtime& runtime) {
    Moved now;
    for (std::size_t i = 0; i < tiers::purpose_count; ++i) {
      const auto moved = runtime.ledger().traffic(tiers::Purpose(i));
      now.by_purpose[i] = {moved.read, moved.written};
    }
    for (const swap::PathReport& path : runtime.paths())
      now.drives.push_back({path.counters.bytes_read, path.counters.bytes_written, path.busy});
    const std::lock_guard lock(mutex_);
    last_ = std::move(now);
    if (steps_++ == 0) first_ = last_;
  }
  /// Sets RunReport::step_traffic, and its parts: Traffic::step, and Drive::step of each drive of the runtime, once two
  /// steps have ended.
  void add_to(RunReport& report) const {
    const std::lock_guard lock(mutex_);
    if (steps_ < 2) return;
    const std::uint64_t steps = steps_ - 1;
    RunReport::StepTraffic all;
    for (RunReport::Traffic& traffic : report.traffic) {
      const auto number = static_cast<std::size_t>(traffic.purpose);
      const RunReport::StepTraffic &first = first_.by_purpose[number], &last = last_.by_purpose[number];
      const RunReport::StepTraffic moved{last.read - first.read, last.written - first.written};
      traffic.step = {moved.read / steps, moved.written / steps};
      all.read += moved.read;
      all.written += moved.written;
    }
    report.step_traffic = {all.read / steps, all.written / steps};
    for (std::size_t i = 0; i < report.drives.size(); ++i) {
      const RunReport::DriveStep &first = first_.drives.at(i), &last = last_.drives.at(i);
      report.drives[i].step = {(last.read - first.read) / steps, (last.written - first.written) / steps,
                               (last.busy - first.busy) / steps};
    }
  }

 private:
  /// Until the end of a step.
  struct Moved {
    std::array<RunReport::StepTraffic, tiers::purpose_count> by_purpose;
    std::vector<RunReport::DriveStep> drives;
  };
  mutable std::mutex mutex_;
  std::uint64_t steps_ = 0;  // that have ended
  Moved first_, last_;
};

}  // namespace penstock::zero
