#pragma once

#include "gpt/model.hpp"
#include "gpt/model_config.hpp"
#include "gpt/plain_memory.hpp"
#include "gpt/rank_device.hpp"
#include "gpt/text.hpp"

#include <penstock/parallel/workers.hpp>
#include <penstock/zero/config/config.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <vector>

namespace gpt {

/// The loop of a training step on plain buffers of a device: what RankTrainer costs without Penstock's engine.
///
/// Has the same losses and masters, bit for bit, as one rank of gpt_train with the same configuration: it computes the
/// same operations on the same blocks, on one stream and in a straight order. Used by one thread.
class PlainTrainer {
 public:
  struct Options {
    ModelConfig model;
    TrainingConfig training;  ///< ranks is 1
    penstock::zero::Config config;
    const Text* text = nullptr;
    MakeDevice make_device;
  };
  [[nodiscard]] static penstock::Result<std::unique_ptr<PlainTrainer>> create(const Options& options);
  /// Waits for the stream.
  ~PlainTrainer();

  struct Outcome {
    double loss = 0;           ///< mean of the micro-batches
    double gradient_norm = 0;  ///< before clipping
    bool skipped = false;      ///< the norm is not finite, or so large that a square of it may overflow fp32
  };
  /// Returns once the losses are known; the device may still update the parameters. Errors: those of the device and of
  /// the arithmetic; non_finite, if the update of the step before has given such a master or second moment.
  [[nodiscard]] penstock::Result<Outcome> step(std::uint32_t step);

  [[nodiscard]] penstock::Result<void> read_masters(const PlainMemory::MasterSink& sink);
  [[nodiscard]] DeviceMemoryUse device_memory();

 private:
  explicit PlainTrainer(const Options& options);
  penstock::Result<void> open();
  /// Enqueues forward and backward of one micro-batch, and the sum of its gradients with those before.
  penstock::Result<void> micro_batch(std::uint32_t step, std::uint32_t micro_batch);
  penstock::Result<void> add_gradients(bool first);
  penstock::Result<void> sum_squares();
  penstock::Result<void> check_finite() const;
  [[nodiscard]] double gradient_norm() const;
  [[nodiscard]] double loss() const;
  penstock::Result<void> update(const penstock::zero::LearningRate& now, float gradient_factor);
  [[nodiscard]] std::vector<penstock::DeviceTensor> parameters(std::size_t unit) const;
  [[nodiscard]] std::vector<Gradient> gradients(std::size_t unit, bool first_micro_batch,
                                                std::vector<ParameterId>& written) const;

  const Options options_;
  const ModelDescription description_;
  RankDevice device_;
  PlainMemory memory_;  // of the device
  std::unique_ptr<penstock::tiers::Stream> stream_;
  std::optional<Model> model_;
  std::vector<BackwardVisit> backward_visits_;
  std::optional<Activations> activations_;
  penstock::ByteCount device_free_at_start_, activation_bytes_;
  std::uint64_t completed_steps_ = 0;
  std::vector<std::uint8_t> tokens_, targets_;  // of a step's micro-batches
  std::vector<float> losses_;
  std::vector<double> squares_;
  std::vector<std::uint64_t> first_non_finite_blocks_;  // of the last update
};

}  // namespace gpt
