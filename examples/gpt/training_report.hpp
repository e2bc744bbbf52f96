#pragma once

#include "gpt/disk_limit.hpp"
#include "gpt/rank_trainer.hpp"

#include <memory>
#include <span>
#include <vector>

namespace gpt {

/// What a person reads of a training run: a line a step, and predicted beside actual at the end. Printed to
/// standard output, by one rank while the others stand still.
class TrainingReport {
 public:
  using Trainers = std::vector<std::unique_ptr<RankTrainer>>;

  /// What the process takes at most beside budgets and activations: code, libraries, stacks, the text; in a
  /// build with CUDA also 160 MiB of cuBLAS, which relocates 84 MiB of tables when it is loaded.
  static const penstock::ByteCount memory_beside_max;

  /// `limit` may be null: not measured. `device_is_host`: host memory plays the accelerator.
  TrainingReport(const ModelConfig& model, const TrainingConfig& training, const DiskLimit* limit,
                 bool device_is_host);

  void step(std::uint32_t step, std::span<const StepReport> reports, const Trainers& trainers);
  void end(const Trainers& trainers, const std::string& digest) const;

 private:
  struct Totals {
    double read = 0, written = 0;  ///< bytes
    [[nodiscard]] bool is_zero() const { return read + written == 0; }
  };
  [[nodiscard]] static Totals moved(const Trainers& trainers);
  void bytes_by_tier(const Trainers& trainers) const;
  void disk(const Trainers& trainers) const;
  void memory(const Trainers& trainers) const;

  const ModelConfig model_;
  const TrainingConfig training_;
  const DiskLimit* limit_;
  const bool device_is_host_;
  double tokens_;
  penstock::TimePoint began_, last_;
  Totals moved_;
  double tile_bytes_ = 0, optimizer_bytes_ = 0, optimizer_seconds_ = 0;
  std::vector<double> losses_;
};

}  // namespace gpt
