#pragma once

#include "kit/seeded_random.hpp"
#include "swap/runtime_internals.hpp"

#include <penstock/base/check.hpp>
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <utility>

namespace penstock::zero::test {

/// Tasks of one thread that run when they are asked to.
class DeferredTasks final : public Executor {
 public:
  void post(std::function<void()> task) override { tasks_.push_back(std::move(task)); }
  /// False if there is none.
  bool run_one() {
    if (tasks_.empty()) return false;
    const auto task = std::move(tasks_.front());
    tasks_.pop_front();
    task();
    return true;
  }

 private:
  std::deque<std::function<void()>> tasks_;
};

/// One rank without disks whose streams and workers run only while it waits, in an order chosen by a seed, so that a
/// forgotten wait shows with one of a few seeds.
class DeferredRank final : public swap::IdleHandler {
 public:
  struct Options {
    Config config{.stage = 3};
    ModelLayout model;
    std::uint64_t seed = 0;
    ByteCount device_beside = {};  ///< memory of the device beside the engine's budget
    /// Puts a device around the HostDevice, and changes the optimizer.
    std::function<void(Accelerator&)> change;
  };
  explicit DeferredRank(const Options& options) : random_(options.seed) {
    const auto make_accelerator = [&](ByteCount memory) -> Result<Accelerator> {
      Accelerator made = make_host_accelerator({.memory = memory + options.device_beside,
                                                .mode = tiers::HostDevice::Mode::deferred,
                                                .seed = options.seed,
                                                .location = tiers::DeviceMemory::separate});
      device_ = static_cast<tiers::HostDevice*>(made.device.get());
      if (options.change) options.change(made);
      return made;
    };
    rank_ = Rank::create({.config = options.config,
                          .model = options.model,
                          .make_accelerator = make_accelerator,
                          .hooks = {.runtime_options =
                                        [this](swap::RuntimeOptions& runtime) {
                                          runtime.idle_handler = this;
                                          runtime.executor = &tasks_;
                                        }}})
                .value();
    stream_ = rank_->device().create_stream().value();
  }
  ~DeferredRank() override {
    finish();
    stream_.reset();
  }

  [[nodiscard]] Engine& engine() { return rank_->engine(); }
  [[nodiscard]] swap::Runtime& runtime() { return rank_->runtime(); }
  [[nodiscard]] const MemoryPlan& plan() const { return rank_->plan(); }
  [[nodiscard]] tiers::Device& device() { return rank_->device(); }
  /// The trainer's.
  [[nodiscard]] tiers::Stream& stream() { return *stream_; }
  /// Runs `kernel` when the trainer's stream gets there.
  void enqueue(std::function<void()> kernel) { stream_->handle().host_queue()->enqueue(std::move(kernel)); }
  /// Until the trainer's stream has executed everything.
  void finish() {
    const auto event = rank_->device().create_event().value();
    stream_->record(*event).value();
    swap::RuntimeInternals(runtime()).wait_for(*event, "the trainer", forever).value();
  }

  void idle() override {
    const bool any = random_.below(2) == 0 ? tasks_.run_one() || device_->run_one()
                                           : device_->run_one() || tasks_.run_one();
    PENSTOCK_CHECK(any);  // else nothing will ever happen
  }

 private:
  penstock::test::SeededRandom random_;
  DeferredTasks tasks_;
  tiers::HostDevice* device_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

}  // namespace penstock::zero::test
