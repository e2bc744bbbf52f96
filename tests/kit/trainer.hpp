#pragma once

#include "kit/cluster.hpp"

#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <type_traits>
#include <vector>

namespace penstock::zero::test {

/// Elements of a tensor, where the test's code can access them.
struct Elements {
  HostSpan bytes;
  DType dtype;

  [[nodiscard]] ElementCount count() const { return ElementCount(bytes.size() / size_of(dtype)); }
};

/// The training program of one rank. Forward and backward are simple functions of the gathered weights, enqueued on a
/// stream, so that a missing wait, a stale or a misplaced byte changes the digest.
class Trainer {
 public:
  /// All arguments outlive it. Precondition of its destruction: the stream has run (finish_stream()).
  Trainer(const RunOptions& options, std::uint32_t rank, Engine& engine, swap::Runtime& runtime,
          tiers::Device& device);

  /// Initializes or restores the engine.
  Result<void> open(RunResult& result);
  /// Trains all steps; ends with the digest.
  Result<void> train(RunResult& result);
  /// The parts of train().
  Result<void> train_step(std::uint32_t step, RunResult& result);
  Result<void> finish(RunResult& result);
  /// A forward without gradients, which compares all parameters with their initial values. The lease of the last unit
  /// is held until the next one, or until finish().
  Result<void> evaluate(RunResult& result);
  Result<void> gather_parameters(RunResult& result);
  /// Waits until the stream has run; other ranks run meanwhile.
  Result<void> finish_stream();

 private:
  using Place = RunOptions::ProgramPoint::Place;

  template <class Call>
  auto persist(RunResult& result, const Call& call) -> std::invoke_result_t<Call>;
  Result<StepOutcome> try_step(std::uint32_t step, RunResult& result);
  [[nodiscard]] Result<void> pass(const RunOptions::ProgramPoint& point) const;
  Result<void> pass_without_leases(const RunOptions::ProgramPoint& point);
  Result<void> recompute_before(std::uint32_t last, RunResult& result);
  Result<void> run(std::uint32_t step, std::uint32_t micro, RunResult& result);
  void enqueue_forward(const UnitLease& lease);
  Result<void> write_checkpoint(std::uint32_t step, std::uint32_t micro, std::uint32_t unit,
                                RunResult& result);
  Result<void> read_checkpoint(std::uint32_t unit, CheckpointUse use, RunResult& result);
  void enqueue_backward(std::uint32_t step, std::uint32_t micro, ParameterId id,
                        const DeviceTensor& parameter, const GradientSlot& slot);
  Result<void> reduce_own_gradients(std::uint32_t step, std::uint32_t micro, std::uint32_t unit,
                                    UnitLease& lease);
  /// Runs `operation` when the stream gets there.
  void enqueue(std::function<void()> operation) { enqueue(*stream_, std::move(operation)); }
  void enqueue(tiers::Stream& stream, std::function<void()> operation);
  /// The bytes of a tensor, for such operations.
  [[nodiscard]] Elements on_host(const DeviceTensor& tensor) const;
  [[nodiscard]] std::vector<std::uint32_t> units_without_gradient(std::uint32_t step) const;
  [[nodiscard]] bool is_frozen(ParameterId id) const {
    return options_.model.groups[options_.model.parameter(id).group].frozen;
  }
  /// Whether all parameters that the unit uses are frozen.
  [[nodiscard]] bool is_frozen(std::uint32_t unit) const;
  [[nodiscard]] std::vector<std::uint32_t> order_of_use(std::uint32_t step, std::uint32_t micro) const;

  const RunOptions& options_;
  const std::uint32_t rank_;
  Engine& engine_;
  swap::Runtime& runtime_;
  std::unique_ptr<tiers::Stream> stream_, reader_;  // the second one reads checkpoints in the forward
  std::unique_ptr<tiers::Event> read_;
  std::unique_ptr<tiers::Event> done_;
  std::deque<std::vector<float>> own_gradients_;  // until the stream has run
  UnitLease held_;                                // of the last unit of an evaluation
  std::uint64_t activation_ = 0;
  std::vector<std::uint64_t> checkpoints_;  // the seed of each one's bytes; changed by the stream
  std::uint32_t attempt_ = 0, evaluations_ = 0;
};

[[nodiscard]] inline std::uint32_t first_step_of(const RunOptions& options, const Engine& engine) {
  return options.begins_where_restored ? static_cast<std::uint32_t>(engine.completed_steps())
                                       : options.first_step;
}
[[nodiscard]] float initial_value(ParameterId parameter, std::uint64_t element);

/// behind: each commit is finished before the next one, a step later.
enum class Commits : std::uint8_t { at_once, behind };

/// Makes a run durable: it continues what the directory has, and commits before each step's forward.
void make_durable(RunOptions& options, std::vector<std::filesystem::path> directories,
                  Commits commits = Commits::at_once);
/// The value that the backward writes for one element, before rounding.
[[nodiscard]] float fake_gradient(float weight, std::uint32_t rank, std::uint32_t step,
                                  std::uint32_t micro_batch, ParameterId parameter, std::uint64_t element);

}  // namespace penstock::zero::test
