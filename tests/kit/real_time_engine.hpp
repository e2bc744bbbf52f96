#pragma once

#include <penstock/tiers/io/sim_disk.hpp>

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>

namespace penstock::test {

/// A SimEngine whose requests take their time on the steady clock, so that a path's driver can wait for them as for a
/// disk. Of the disk's other engines none may be used by another thread meanwhile.
class RealTimeEngine final : public tiers::IoEngine {
 public:
  RealTimeEngine(tiers::SimDisk& disk, std::uint64_t seed) : engine_(disk, clock_, seed) {}

  std::size_t submit(std::span<const tiers::IoRequest> requests) noexcept override {
    (void)read_clock();
    return engine_.submit(requests);
  }
  std::size_t reap(std::span<tiers::IoCompletion> completions, TimePoint deadline) noexcept override {
    while (true) {
      const TimePoint now = read_clock();
      const std::size_t count = engine_.reap(completions, deadline);
      std::unique_lock lock(mutex_);
      if (count == 0 && !woken_ && now < deadline) {
        wait_until(std::min(deadline, engine_.next_due()), lock);
        continue;
      }
      woken_ = false;
      return count;
    }
  }
  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    changed_.notify_all();
  }
  void attach(tiers::FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }
  bool close(TimePoint deadline) noexcept override { return engine_.close(deadline); }

  tiers::IoLimits limits() const noexcept override { return engine_.limits(); }
  std::uint32_t in_flight() const noexcept override { return engine_.in_flight(); }
  const char* name() const noexcept override { return engine_.name(); }
  std::string notes() const override { return engine_.notes(); }

 private:
  TimePoint read_clock() noexcept {
    clock_.advance_to(Clock::steady().now());
    return clock_.now();
  }
  void wait_until(TimePoint due, std::unique_lock<std::mutex>& lock) {
    const auto woken = [this] { return woken_; };
    if (due == forever) return changed_.wait(lock, woken);
    changed_.wait_until(lock, std::chrono::steady_clock::time_point(due), woken);
  }

  tiers::SimClock clock_;
  tiers::SimEngine engine_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool woken_ = false;  // by a call that no reap() has answered yet
};

}  // namespace penstock::test
