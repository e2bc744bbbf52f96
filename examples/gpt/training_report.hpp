#pragma once

#include "gpt/disk_limit.hpp"
#include "gpt/output_file.hpp"
#include "gpt/rank_trainer.hpp"

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

namespace gpt {

/// Prints a training run to standard output: a line per step, and at the end predicted and actual figures side by
/// side. Used by one rank while the others wait.
class TrainingReport {
 public:
  using Trainers = std::vector<std::unique_ptr<RankTrainer>>;

  /// Of the `ranks_here` ranks of this process; of the training's tokens, all. `limit` is null if it was not measured.
  /// `device_is_host`: host memory is used as the device.
  TrainingReport(const ModelConfig& model, const TrainingConfig& training, std::uint32_t ranks_here,
                 const DiskLimit* limit, bool device_is_host);

  /// `loss`: the mean of all ranks.
  void step(std::uint32_t step, double loss, std::span<const StepReport> reports, const Trainers& trainers);
  void end(const Trainers& trainers, const std::string& digest) const;
  /// Writes the same figures as JSON: docs/gpt_example.md.
  void write_json(const OutputFile& file, const Trainers& trainers, const std::string& digest) const;

 private:
  struct Totals {
    double read = 0, written = 0;  ///< bytes
    [[nodiscard]] bool is_zero() const { return read + written == 0; }
  };
  struct Step {
    double loss = 0, seconds = 0, update_seconds = 0, stall_seconds = 0;
    Totals moved;
    bool skipped = false;
  };
  [[nodiscard]] static Totals moved(const Trainers& trainers);
  void bytes_by_tier(const Trainers& trainers) const;
  void disk(const Trainers& trainers) const;
  void steps_on_disk(const Trainers& trainers) const;
  void memory(const Trainers& trainers) const;

  const ModelConfig model_;
  const TrainingConfig training_;
  const std::uint32_t ranks_here_;
  const DiskLimit* limit_;
  const bool device_is_host_;
  double tokens_;
  penstock::TimePoint began_, last_;
  Totals moved_;
  double tile_bytes_ = 0, optimizer_bytes_ = 0, optimizer_seconds_ = 0;
  std::vector<Step> steps_;
  penstock::ByteCount device_free_min_ = penstock::ByteCount(UINT64_MAX);  // of rank 0
};

}  // namespace gpt
