#pragma once

#include "swap/runtime_internals.hpp"

#include <penstock/base/check.hpp>
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

namespace penstock::zero::test {

/// One rank without disks on a deferred device: its streams run only while the rank waits, in an order chosen by a
/// seed, so that a forgotten wait shows with one of a few seeds.
class DeferredRank final : public swap::IdleHandler {
 public:
  struct Options {
    Config config;
    ModelLayout model;
    std::uint64_t seed = 0;
    /// Puts a device around the HostDevice, and changes the optimizer.
    std::function<void(Accelerator&)> change;
  };
  explicit DeferredRank(const Options& options) {
    const auto make_accelerator = [&](ByteCount memory) -> Result<Accelerator> {
      Accelerator made = make_host_accelerator({});
      auto device = std::make_unique<tiers::HostDevice>(
          tiers::HostDevice::Options{.memory = memory,
                                     .mode = tiers::HostDevice::Mode::deferred,
                                     .seed = options.seed,
                                     .location = tiers::DeviceMemory::separate});
      device_ = device.get();
      made.device = std::move(device);
      if (options.change) options.change(made);
      return made;
    };
    rank_ =
        Rank::create({.config = options.config,
                      .model = options.model,
                      .make_accelerator = make_accelerator,
                      .hooks = {.runtime_options =
                                    [this](swap::RuntimeOptions& runtime) { runtime.idle_handler = this; }}})
            .value();
    stream_ = rank_->device().create_stream().value();
  }
  ~DeferredRank() override {
    finish();
    stream_.reset();
  }

  [[nodiscard]] Engine& engine() { return rank_->engine(); }
  [[nodiscard]] swap::Runtime& runtime() { return rank_->runtime(); }
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
    PENSTOCK_CHECK(device_->run_one());  // else nothing will ever happen
  }

 private:
  tiers::HostDevice* device_ = nullptr;
  std::unique_ptr<Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

}  // namespace penstock::zero::test
