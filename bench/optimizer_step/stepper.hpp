#pragma once

#include "zero/simulate/planned_step.hpp"

#include <penstock/base/stream.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/zero/rank.hpp>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace penstock::bench {

/// A model of equal units, and where and in which format its optimizer states are kept.
struct StepperOptions {
  std::filesystem::path path = ".";
  TimePoint io_deadline = swap::PathOptions().deadline;  ///< whole seconds
  zero::OffloadDevice device = zero::OffloadDevice::nvme;
  std::uint64_t parameters = 128'000'000;
  std::uint64_t unit_parameters = 8'000'000;
  std::uint64_t tile_elements = 0;  ///< 0: the format's default
  std::uint32_t tiles_in_flight = 4;
  std::uint64_t host_mib = 0;  ///< 0: as planned
  std::uint32_t threads = 2;
  /// The part of the tiles that the CPU updates. Below 1 the device is a simulated accelerator: it has memory of its
  /// own and a thread for each stream, so that states pass through it as through a GPU. Its kernels run on the CPU.
  double cpu_ratio = 1;
  cpu_adam::StateFormat format = cpu_adam::StateFormat::fp32;
  bool integrity = true;
};

/// One rank that runs optimizer steps only, with constant gradients.
class Stepper {
 public:
  static Result<std::unique_ptr<Stepper>> create(const StepperOptions& options);
  Stepper(const Stepper&) = delete;
  Stepper& operator=(const Stepper&) = delete;

  struct Timing {
    /// Seconds of backward that reduce() takes: copying gradients to host memory, accumulating them there and
    /// summing their squares for the norm.
    double gradient_accumulation;
    double step;              ///< seconds of step(), its writes included
    ByteCount read, written;  ///< by step()
    ElementCount on_device;   ///< of the step before: updated by the simulated accelerator
  };
  /// Writes a gradient for every unit, then runs one optimizer step.
  Result<Timing> step();

  [[nodiscard]] const zero::MemoryPlan& plan() const { return rank_->plan(); }
  /// What is simulated of its steps.
  [[nodiscard]] Result<zero::simulate::PlannedStep> planned_step() const {
    return zero::simulate::plan_step(config_, model_, rank_->plan(), {});
  }
  [[nodiscard]] swap::Runtime& runtime() { return rank_->runtime(); }

 private:
  Stepper() = default;
  Result<void> open(const StepperOptions& options);

  zero::Config config_;
  zero::ModelLayout model_;
  std::optional<parallel::Workers> workers_;
  std::unique_ptr<zero::Rank> rank_;
  std::unique_ptr<tiers::Stream> stream_;
};

}  // namespace penstock::bench
