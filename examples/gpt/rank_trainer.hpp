#pragma once

#include "gpt/model.hpp"
#include "gpt/model_config.hpp"
#include "gpt/rank_device.hpp"
#include "gpt/residual_leases.hpp"
#include "gpt/state_file.hpp"
#include "gpt/text.hpp"
#include "gpt/timeline.hpp"
#include "gpt/training_memory.hpp"

#include <penstock/zero/rank.hpp>

#include <deque>
#include <functional>
#include <memory>
#include <vector>

namespace gpt {

/// The model as the engine needs to know it: units, parameters, shared parameters, weight decay, frozen parameters,
/// matrices for Muon, checkpoints.
[[nodiscard]] penstock::zero::ModelLayout layout_of(
    const ModelConfig& model, const TrainingConfig& training,
    penstock::cpu_adam::Optimizer optimizer = penstock::cpu_adam::Optimizer::adam);

/// The loss and the times of one rank's step.
struct StepReport {
  /// Seconds by phase of the step, of all micro-batches.
  struct Phases {
    double forward = 0, backward = 0, step = 0;
    [[nodiscard]] double sum() const { return forward + backward + step; }
  };
  /// Seconds by what the trainer's thread waited for: parameters that are read, gathered or still updated; room for
  /// gradients; checkpoints; in step() gradients that are still reduced, and the last update.
  struct Stalls {
    double parameters = 0, gradients = 0, checkpoints = 0, step = 0;
    [[nodiscard]] double sum() const { return parameters + gradients + checkpoints + step; }
  };

  double loss = 0;  ///< mean of this rank's micro-batches
  penstock::zero::StepOutcome outcome;
  Phases took;                        ///< of the trainer's thread, which on a GPU only enqueues
  Stalls stalled;                     ///< how long it waited
  std::vector<std::string> messages;  ///< reports of failing paths
};

/// One rank that embeds Penstock: a zero::Rank, and the loop of a training step.
/// Used by one thread.
class RankTrainer {
 public:
  struct Options {
    ModelConfig model;
    TrainingConfig training;
    penstock::zero::Config config;
    const Text* text = nullptr;
    /// Of the rank that it trains, and how it joins the others; a rank that is alone needs none.
    penstock::zero::RankIdentity identity = {};
    penstock::zero::GroupMembership group = {};
    MakeDevice make_device;
    /// Of a training of the same model without adapters: the parameters begin with its masters. None: with those of
    /// ModelDescription::initial_values(), as adapters do.
    const StateFile* base = nullptr;
    /// Of a training of the same model: the trained parameters continue with its states, instead of the base's.
    const StateFile* resumed = nullptr;
    bool timed = false;  ///< keep a timeline
    /// If set, is called after the second step, with the uses of this step and its update.
    std::function<void(const penstock::swap::AccessTrace&)> take_uses = {};
    /// If set, is called last to change the runtime's options, for example to inject faults into its paths.
    std::function<void(penstock::swap::RuntimeOptions&)> adjust_runtime;
  };
  [[nodiscard]] static penstock::Result<std::unique_ptr<RankTrainer>> create(const Options& options);
  ~RankTrainer();

  [[nodiscard]] penstock::Result<StepReport> step(std::uint32_t step);
  /// Waits until the last step has updated all parameters.
  [[nodiscard]] penstock::Result<void> finish_update() { return rank_->engine().finish_update(); }
  [[nodiscard]] penstock::Result<std::string> digest() { return rank_->engine().digest(); }
  /// Writes the states of this rank's shards that are trained.
  [[nodiscard]] penstock::Result<void> save(StateFile& file);
  /// Makes the run durable as of `steps`, in penstock.durable_directory: behind the next step, which completes it.
  [[nodiscard]] penstock::Result<void> begin_commit(std::uint64_t steps);
  /// The outcome of the last one, completed if it was not.
  [[nodiscard]] penstock::Result<void> finish_commit();
  /// Of the run that the durable directory had, the steps before its last commit; none, if this one begins.
  [[nodiscard]] std::optional<std::uint64_t> committed_steps() const { return committed_steps_; }
  /// With the trainer's `steps`.
  [[nodiscard]] StateFile::Progress progress(std::uint64_t steps) const;

  /// What streams and disks did; null if Options::timed is not set. The compute stream's spans follow one another from
  /// the first micro-batch on, so that its waits are all that is left.
  [[nodiscard]] Timeline* timeline() { return timeline_.get(); }
  [[nodiscard]] penstock::swap::Runtime& runtime() { return rank_->runtime(); }
  [[nodiscard]] penstock::zero::Engine& engine() { return rank_->engine(); }
  [[nodiscard]] DeviceMemoryUse device_memory();
  [[nodiscard]] const penstock::zero::MemoryPlan& plan() const { return rank_->plan(); }
  [[nodiscard]] penstock::zero::RunReport report() const { return rank_->report(); }
  /// For the monitors of the configuration, after `steps`.
  [[nodiscard]] penstock::Result<void> write_loss(std::uint64_t steps, double loss);
  /// Requested features that are not available, one per line.
  [[nodiscard]] std::vector<std::string> notes() const { return rank_->notes(); }

 private:
  explicit RankTrainer(const Options& options) : options_(options) {}
  penstock::Result<void> open();
  penstock::Result<void> open_training_memory();
  penstock::Result<void> set_parameters();
  penstock::Result<bool> continue_commit();
  /// What a training begins with, or continues with.
  penstock::Result<void> first_state(penstock::zero::ParameterId parameter,
                                     penstock::cpu_adam::StateKind kind, std::uint64_t first,
                                     std::span<float> values) const;
  penstock::Result<StepReport> train(std::uint32_t step);
  penstock::Result<StepReport> train_recorded(std::uint32_t step);
  /// Enqueues forward and backward of the micro-batches from number `first` on that are in progress at a time.
  penstock::Result<void> micro_batches(std::uint32_t step, std::uint32_t first, StepReport& report);
  /// Enqueues the copies of a micro-batch's tokens to the device.
  penstock::Result<void> copy_tokens(std::uint32_t step, std::uint32_t micro_batch, Activations& activations);
  penstock::Result<void> forward(std::uint32_t unit);
  penstock::Result<void> backward(const BackwardVisit& visit);
  /// Those of `values`, of one micro-batch.
  template <class Values>
  [[nodiscard]] auto of_micro_batch(Values& values, std::uint32_t micro_batch) const {
    const std::size_t rows = values.size() / options_.training.micro_batches;
    return std::span(values).subspan(micro_batch * rows, rows);
  }
  /// The mean loss of the step's micro-batches.
  penstock::Result<double> read_loss();

  /// The compute stream did this until now; the trainer's thread may have waited for it.
  void did(Activity activity, std::uint32_t unit = 0);
  /// What the trainer's thread has waited since the last call had this cause.
  void note_stall(double StepReport::Stalls::*cause);

  Options options_;
  std::shared_ptr<Timeline> timeline_;  // used by the rank's device and disks
  std::unique_ptr<penstock::zero::Rank> rank_;
  std::unique_ptr<Ops> ops_;  // its scratch is memory of the rank's device
  std::unique_ptr<penstock::tiers::Stream> stream_;
  std::optional<Model> model_;
  std::vector<BackwardVisit> backward_visits_;
  std::vector<Activations> activations_;  // of the micro-batches that are in progress at a time
  std::deque<ResidualLeases> residuals_;  // one for each of them, or none
  std::optional<GradientSums> sums_;      // if they are several
  penstock::ByteCount device_free_at_start_, activation_bytes_;
  std::vector<std::uint8_t> tokens_, targets_;  // of a step's micro-batches
  std::vector<float> losses_;
  std::optional<std::uint64_t> committed_steps_;
  bool commit_in_progress_ = false;
  std::uint32_t begun_steps_ = 0;  // by this object
  StepReport::Stalls stalls_;      // of the step
  penstock::TimePoint stall_time_{};
};

}  // namespace gpt
