#pragma once

#include "sim/continued_runs.hpp"

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <utility>

namespace penstock::zero::test {

// Durable runs that save checkpoints, and runs that load them.

/// A durable run that calls `save` with each engine before each step but the first.
inline RunOptions saving(RunOptions options, const std::filesystem::path& durable_directory,
                         std::function<Result<void>(Engine&, std::uint32_t rank)> save) {
  using Point = RunOptions::ProgramPoint;
  options = durable(std::move(options), durable_directory);
  options.without_leases = [save = std::move(save)](Engine& engine, const Point& point) -> Result<void> {
    const bool begins = point.unit == 0 && point.micro_batch == 0 && point.place == Point::Place::forward;
    return begins && point.step > 0 ? save(engine, point.rank) : ok();
  };
  return options;
}

/// The rest of a run, from a checkpoint.
inline RunOptions loading(RunOptions options, const std::filesystem::path& checkpoint) {
  options.begins_where_restored = true;
  options.restore = [checkpoint](Engine& engine) -> Result<void> {
    PENSTOCK_TRY(engine.load_checkpoint(checkpoint));
    return ok();
  };
  return options;
}

/// The rest of a run, from its durable directory.
inline RunOptions resuming(RunOptions options) {
  options.begins_where_restored = true;
  options.restore = [](Engine& engine) -> Result<void> {
    PENSTOCK_TRY_ASSIGN(const auto resumed, engine.resume());
    return resumed ? ok() : Error(ErrorCode::not_found, "the test").reason("there is no commit");
  };
  return options;
}

inline RunOptions saved_run(std::uint32_t ranks = 2) {
  RunOptions options{.ranks = ranks, .micro_batches = 1, .steps = 4};
  options.config.offload_optimizer.device = OffloadDevice::nvme;
  options.config.offload_param.device = OffloadDevice::cpu;
  return options;
}

inline std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace penstock::zero::test
