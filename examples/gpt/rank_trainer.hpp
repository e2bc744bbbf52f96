#pragma once

#include "gpt/model.hpp"
#include "gpt/model_config.hpp"
#include "gpt/rank_device.hpp"
#include "gpt/text.hpp"

#include <penstock/base/compute.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/in_process_group.hpp>
#include <penstock/zero/engine/engine.hpp>

#include <functional>
#include <memory>
#include <vector>

namespace gpt {

/// The model as the engine must know it: units, parameters, what is shared, what decays.
[[nodiscard]] penstock::zero::ModelLayout layout_of(const ModelDescription& model);

/// What a step of one rank cost.
struct StepReport {
  double loss = 0;  ///< mean of this rank's micro-batches
  penstock::zero::StepOutcome outcome;
  double step_seconds = 0;            ///< inside Engine::step
  double stall_seconds = 0;           ///< of this rank's trainer thread, waiting for bytes
  std::vector<std::string> messages;  ///< what became of failing paths
};

/// One rank that embeds Penstock: its runtime, its engine, and the loop of a training step.
/// Used by one thread.
class RankTrainer {
 public:
  struct Options {
    ModelConfig model;
    TrainingConfig training;
    penstock::zero::Config config;
    const Text* text = nullptr;
    penstock::zero::InProcessGroup* group = nullptr;
    std::uint32_t rank = 0;
    MakeDevice make_device;
    /// Set: has the last word on the runtime's options, such as faults for its paths.
    std::function<void(penstock::swap::RuntimeOptions&)> adjust_runtime;
  };
  [[nodiscard]] static penstock::Result<std::unique_ptr<RankTrainer>> create(const Options& options);
  ~RankTrainer();

  [[nodiscard]] penstock::Result<StepReport> step(std::uint32_t step);
  [[nodiscard]] penstock::Result<std::string> digest() { return engine_->digest(); }

  [[nodiscard]] penstock::swap::Runtime& runtime() { return *runtime_; }
  [[nodiscard]] const penstock::zero::MemoryPlan& plan() const { return plan_; }
  /// What was asked for and could not be had, a line each.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  explicit RankTrainer(const Options& options) : options_(options) {}
  penstock::Result<void> open();
  /// Forward and backward of one micro-batch; its mean loss.
  penstock::Result<double> micro_batch(std::uint32_t step, std::uint32_t micro_batch);
  penstock::Result<double> read_loss();

  Options options_;
  penstock::zero::MemoryPlan plan_;
  std::optional<penstock::parallel::Workers> workers_;  // run the runtime's checksums too, so they outlive it
  std::unique_ptr<penstock::swap::Runtime> runtime_;
  RankDevice device_;
  std::unique_ptr<penstock::tiers::Stream> stream_;
  std::unique_ptr<penstock::zero::Communicator> communicator_;
  std::optional<Model> model_;
  std::optional<Activations> activations_;
  std::unique_ptr<penstock::zero::Engine> engine_;
  std::vector<std::uint8_t> tokens_, targets_;
  std::vector<float> losses_;
};

}  // namespace gpt
