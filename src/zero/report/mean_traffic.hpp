#pragma once

#include <penstock/tiers/store/ledger.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <cstdint>
#include <mutex>

namespace penstock::zero {

/// What a step moves, as RunReport::step_traffic. Safe from any thread.
class MeanTraffic {
 public:
  /// A step has ended; `all`: what was moved until now.
  void end_step(const tiers::Ledger::Traffic& all) {
    const std::lock_guard lock(mutex_);
    last_ = {.steps = last_.steps + 1, .read = all.read, .written = all.written};
    if (last_.steps == 1) first_ = last_;
  }
  [[nodiscard]] RunReport::StepTraffic mean() const {
    const std::lock_guard lock(mutex_);
    if (last_.steps < 2) return {};
    const std::uint64_t steps = last_.steps - first_.steps;
    return {(last_.read - first_.read) / steps, (last_.written - first_.written) / steps};
  }

 private:
  struct Moved {
    std::uint64_t steps = 0;  // that have ended
    ByteCount read, written;
  };
  mutable std::mutex mutex_;
  Moved first_, last_;
};

}  // namespace penstock::zero
