#pragma once

#include "kit/counting_device.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace penstock::zero::test {

/// Workers in virtual time: each runs one task after the other, and each task takes the same time.
class TimedWorkers final : public Executor {
 public:
  TimedWorkers(const Clock& clock, std::size_t workers, TimePoint task_takes)
      : clock_(clock), free_(workers), takes_(task_takes) {}

  void post(std::function<void()> task) override;
  /// Runs one task that has ended. False if none has.
  bool run_one();
  [[nodiscard]] TimePoint next_due() const;

 private:
  struct Running {
    std::function<void()> task;
    TimePoint ends;
  };
  void begin_tasks();

  const Clock& clock_;
  std::size_t free_;
  const TimePoint takes_;
  std::deque<std::function<void()>> waiting_;
  std::vector<Running> running_;
};

/// One rank in virtual time: the device's copy engines and kernels, the workers and the disk take time on one clock,
/// which advances only when nothing else can happen. What the rank's own code does takes no time. Options::threaded is
/// the exception.
class TimedRank final : public swap::IdleHandler {
 public:
  struct Options {
    Config config{.stage = 3};
    ModelLayout model;
    tiers::HostDevice::Speeds speeds;
    tiers::SimDisk::Options disk;
    std::size_t workers = 1;
    TimePoint task_takes{};  ///< of a worker
    /// With the runtime's threads, on the machine's clock: without simulated disks and workers.
    bool threaded = false;
  };
  explicit TimedRank(const Options& options);
  ~TimedRank() override;

  [[nodiscard]] Engine& engine() { return rank_->engine(); }
  [[nodiscard]] tiers::Stream& stream() { return *stream_; }
  [[nodiscard]] const tiers::Ledger& ledger() { return rank_->runtime().ledger(); }
  [[nodiscard]] bool has_checkpoints() const { return options_.model.checkpoints.count > 0; }
  [[nodiscard]] TimePoint now() const { return options_.threaded ? Clock::steady().now() : clock_.now(); }
  /// Enqueues a kernel of the trainer.
  void compute(TimePoint takes);
  /// Enqueues zeros for these bytes, which takes no time.
  void clear(DeviceSpan bytes);
  /// When the trainer's stream gets here is the value of `*at` then.
  void mark(TimePoint* at);
  /// Until the trainer's stream has executed everything.
  void finish();
  [[nodiscard]] const penstock::test::DeviceCalls& calls() const { return counting_->calls(); }
  /// Until nothing is in flight.
  void run_dry();

  void idle() override;

 private:
  bool advance();

  const Options options_;
  tiers::SimClock clock_;
  tiers::SimDisk disk_;
  TimedWorkers workers_;
  tiers::SimEngine* engine_of_disk_ = nullptr;
  tiers::HostDevice* device_ = nullptr;
  penstock::test::CountingDevice* counting_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
  std::unique_ptr<tiers::Event> event_;
};

}  // namespace penstock::zero::test
