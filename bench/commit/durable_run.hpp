#pragma once

#include <penstock/base/time.hpp>
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/zero/rank.hpp>

#include <chrono>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <utility>

namespace penstock::bench {

inline double seconds_since(TimePoint began) {
  return std::chrono::duration<double>(Clock::steady().now() - began).count();
}

/// A run of one rank whose arithmetic is nothing but the optimizer's.
class DurableRun {
 public:
  /// `durable`: its directory; empty: it ends with its process, and its swap files are in `nvme_path`.
  static Result<std::unique_ptr<DurableRun>> create(std::uint64_t parameters, zero::OffloadDevice to,
                                                    const std::filesystem::path& durable,
                                                    const std::filesystem::path& nvme_path = {}) {
    zero::Config config{.stage = 3};
    config.dtype = DType::bf16;
    config.grad_accum_dtype = DType::fp32;
    config.offload_param.device = config.offload_optimizer.device = to;
    if (to == zero::OffloadDevice::nvme)
      config.offload_param.nvme_paths = config.offload_optimizer.nvme_paths = {nvme_path};
    if (!durable.empty()) config.penstock.durable_directories = {durable};
    zero::ModelLayout model;
    for (std::uint32_t u = 0; u < units; ++u) {
      model.units.push_back(
          {.name = "unit" + std::to_string(u), .parameters = {{"weight", ElementCount(parameters / units)}}});
    }
    std::unique_ptr<DurableRun> run(new DurableRun());
    PENSTOCK_TRY_ASSIGN(run->rank_, zero::Rank::create({.config = config, .model = std::move(model)}));
    PENSTOCK_TRY_ASSIGN(run->stream_, run->rank_->device().create_stream());
    return run;
  }

  Result<void> initialize() {
    return engine().initialize([](zero::ParameterId, std::uint64_t first, std::span<float> values) {
      for (std::size_t i = 0; i < values.size(); ++i)
        values[i] = static_cast<float>((first + i) % 97) * 0.01f;
    });
  }

  [[nodiscard]] zero::Engine& engine() { return rank_->engine(); }

  /// Returns the seconds of a step and its update. `device`: of the arithmetic, in which the CPU does nothing.
  Result<double> step(double device = 0) {
    const TimePoint began = Clock::steady().now();
    PENSTOCK_TRY(engine().begin_step({}));
    std::this_thread::sleep_for(std::chrono::duration<double>(device));
    for (std::uint32_t u = 0; u < units; ++u) {
      PENSTOCK_TRY_ASSIGN(auto lease, engine().acquire(u, *stream_));
      PENSTOCK_TRY_ASSIGN(auto gradients, engine().gradients(u, *stream_));
      const HostSpan slot = tiers::HostDevice::bytes(gradients.slots()[0].tensor.bytes);
      std::memset(slot.data(), 0x3c, slot.size().value());  // 0.01
      lease.end();
      PENSTOCK_TRY(engine().reduce(std::move(gradients), *stream_));
    }
    PENSTOCK_TRY(engine().step());
    PENSTOCK_TRY(engine().finish_update());
    return seconds_since(began);
  }

 private:
  static constexpr std::uint32_t units = 8;

  DurableRun() = default;
  std::unique_ptr<zero::Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

}  // namespace penstock::bench
