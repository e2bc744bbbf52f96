#pragma once

#include "kit/trainer.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/zero/rank.hpp>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace penstock::zero::test {

// A durable run of one rank, on threads and real files.

inline ModelLayout two_units(std::uint64_t elements = 100'000) {
  ModelLayout model;
  model.units = {{.name = "first", .parameters = {{"weight", ElementCount(elements), 0}}},
                 {.name = "second", .parameters = {{"weight", ElementCount(50'000), 0}}}};
  return model;
}

inline Config durable_config(const std::filesystem::path& directory, OffloadDevice to = OffloadDevice::nvme) {
  Config config{.stage = 3};
  config.offload_optimizer.device = to;
  if (to == OffloadDevice::nvme) config.offload_optimizer.nvme_paths = {directory};
  config.penstock.durable_directories = {directory / "run"};
  return config;
}

/// One rank on threads.
struct OneRank {
  std::unique_ptr<Rank> rank;
  std::unique_ptr<tiers::Stream> stream;

  static Result<OneRank> create(const Config& config, const ModelLayout& model = two_units(),
                                RankHooks hooks = {}) {
    OneRank run;
    PENSTOCK_TRY_ASSIGN(run.rank,
                        Rank::create({.config = config, .model = model, .hooks = std::move(hooks)}));
    PENSTOCK_TRY_ASSIGN(run.stream, run.rank->device().create_stream());
    return run;
  }
  [[nodiscard]] Engine& engine() const { return rank->engine(); }
  static void fill(ParameterId, std::uint64_t first, std::span<float> values) {
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = 0.01f * static_cast<float>((first + i) % 997);
  }
  void initialize() const { engine().initialize(fill).value(); }
  /// One step, in which each gradient is the parameter.
  void train() const {
    engine().begin_step({}).value();
    for (std::uint32_t unit = 0; unit < rank->model().units.size(); ++unit) train_unit(unit);
    (void)engine().step().value();
  }
  /// The unit's part of such a step.
  void train_unit(std::uint32_t unit) const {
    const auto floats = [](const DeviceTensor& tensor) {
      return tiers::HostDevice::bytes(tensor.bytes).as<float>();
    };
    const auto lease = engine().acquire(unit, *stream).value();
    auto gradients = engine().gradients(unit, *stream).value();
    std::ranges::copy(floats(lease.parameters()[0]), floats(gradients.slots()[0].tensor).begin());
    engine().reduce(std::move(gradients), *stream).value();
  }
};

/// Begins a run and commits after one step. Returns the digest.
inline std::string commit_one_step(const Config& config) {
  const OneRank run = OneRank::create(config).value();
  run.initialize();
  run.train();
  (void)run.engine().commit().value();
  return run.engine().digest().value();
}

/// Of the swap files, or of the copies of what is in memory.
inline RankHooks with_faults(bool of_swap_files, tiers::FaultEngine*& faults) {
  const auto set = [&faults](swap::PathOptions& path) {
    path.decorate = [&faults](std::unique_ptr<tiers::IoEngine> engine) {
      auto faulty = std::make_unique<tiers::FaultEngine>(std::move(engine), tiers::FaultPlan());
      faults = faulty.get();
      return faulty;
    };
  };
  if (!of_swap_files) return {.durable_files = set};
  return {.runtime_options = [set](swap::RuntimeOptions& options) {
    for (swap::PathOptions& path : options.paths) set(path);
  }};
}

}  // namespace penstock::zero::test
