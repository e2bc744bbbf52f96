#pragma once

#include "kit/rank_scheduler.hpp"
#include "kit/scratch_directory.hpp"
#include "kit/seeded_random.hpp"

#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/io/fault_engine.hpp>
#include <penstock/tiers/io/sim_disk.hpp>
#include <penstock/zero/rank.hpp>

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero::test {

/// Three units and a tied parameter, with odd sizes.
[[nodiscard]] ModelLayout small_model();

/// Four layers of which each rank has several tiles, also where there are three.
[[nodiscard]] ModelLayout model_of_long_units();

/// Eight layers, of which the smallest device budget holds three: flats are dropped and gathered again. The last layer
/// shares the first one's weight.
[[nodiscard]] ModelLayout deep_model();

/// Units of all sizes, some of which use parameters of others.
[[nodiscard]] ModelLayout random_model(penstock::test::SeededRandom& random);

/// A forward in another order than the layout's, in which some units are used more than once: see
/// RunOptions::order_of_use.
[[nodiscard]] std::vector<std::uint32_t> random_order(std::uint64_t seed, std::size_t units);

/// What the tiles of a run store.
struct RunFormat {
  cpu_adam::StateFormat format;
  DType parameters = DType::bf16;

  [[nodiscard]] std::string name() const;
  /// Whether the parameters are the masters and the moments fp32. Such states are not kept on the device, unless the
  /// parameters are fp32.
  [[nodiscard]] bool must_be_offloaded() const;
  /// Offloads the states to host memory if they must be and are not.
  void set(Config& config) const;
};
/// The formats whose masters are 16-bit parameters.
inline constexpr RunFormat narrow_formats[] = {{cpu_adam::StateFormat::moments, DType::bf16},
                                               {cpu_adam::StateFormat::moments, DType::fp16},
                                               {cpu_adam::StateFormat::moments_bf16, DType::bf16}};

/// A device other than a HostDevice, and how the test's trainer works on it.
struct TestAccelerator {
  std::function<Result<Accelerator>(std::uint32_t rank, ByteCount memory)> make;
  /// Runs a function when the stream gets there, as a kernel of the trainer.
  std::function<void(StreamHandle, std::function<void()>)> enqueue;
  /// Where such functions find the bytes of a span.
  std::function<HostSpan(DeviceSpan)> bytes;
};

/// The setup of a training run. The result does not depend on the members after `config`. If the model has checkpoints,
/// there is one for each unit: its forward writes it and reads that of the unit before, its backward reads it.
struct RunOptions {
  std::uint32_t ranks = 2;
  std::uint32_t micro_batches = 2;
  std::optional<std::uint32_t> configured_micro_batches;  ///< micro-batches of the plan, if different
  std::uint32_t steps = 3;
  UpdateFunction update = {};  ///< see Rank::Options
  Config config = default_config();
  ModelLayout model = small_model();
  /// If set, one thread runs all ranks on simulated disks and deferred streams. If not, ranks are threads and use the
  /// real disk, unless `disk` is set.
  std::optional<std::uint64_t> seed;
  /// How a rank joins its peers; empty: an InProcessGroup.
  std::function<GroupMembership(std::uint32_t rank)> membership;
  std::optional<std::uint32_t> only_rank;  ///< that this process runs, of those that `membership` joins
  std::uint32_t threads = 1;               ///< workers of a rank
  /// If set, without a seed: each stream of a rank's HostDevice is a thread, whose operations take time.
  std::optional<tiers::HostDevice::Speeds> streams;
  /// The ranks' device, if it is no HostDevice; without a seed, and with gradients of the engine.
  std::optional<TestAccelerator> accelerator;
  /// Puts a device around each rank's HostDevice, or changes its optimizer.
  std::function<void(Accelerator&)> change_accelerator;
  tiers::DeviceMemory device_memory = tiers::DeviceMemory::host;
  ByteCount device_memory_of_trainer;  ///< beside the engine's
  /// Whose memory the backward writes gradients to: the engine's slots, or fp32 memory of the trainer, on either side.
  enum class Gradients : std::uint8_t { of_engine, on_device, on_host } gradients = Gradients::of_engine;
  std::function<std::vector<std::uint32_t>(std::uint32_t step)> units_without_gradient;
  /// The units of a forward in the order of their uses, each once or more; the backward is in reverse, and a unit's
  /// gradient is that of its last use. Empty: each once, in the layout's order. Without checkpoints.
  std::function<std::vector<std::uint32_t>(std::uint32_t step, std::uint32_t micro_batch)> order_of_use;
  /// Units whose forward is computed again before their backward, see order_with_recomputation(); 1: none is acquired
  /// for that. In the layout's order, without checkpoints.
  std::uint32_t recomputed_together = 1;
  ByteCount request_max = ByteCount(65536);
  tiers::EngineChoice engine = tiers::EngineChoice::automatic;
  /// The initial masters; if not set, initial_value().
  std::function<float(ParameterId parameter, std::uint64_t element)> initial;
  /// The gradients of this optimizer group are 0.
  std::optional<std::uint32_t> group_without_gradients = {};
  /// Multiplies the gradient of (step, rank); to make one non-finite.
  std::function<float(std::uint32_t step, std::uint32_t rank)> gradient_scale;
  /// The only one that gradient_scale applies to, if set.
  std::optional<ParameterId> scaled_parameter = {};
  std::uint32_t paths = 1;  ///< swap files of each rank
  /// The durable directory of each rank; ranks that share one are on one machine. Empty: all have the configuration's.
  std::vector<std::filesystem::path> machines = {};
  /// The simulated disk of a rank; empty: all are alike. Without a seed, it takes its time on the steady clock.
  std::function<tiers::SimDisk::Options(std::uint32_t rank)> disk;
  /// Disks that outlive the run, one for each rank; instead of `disk`.
  std::vector<tiers::SimDisk*> disks = {};
  /// Changes the paths of a rank, after all that the members above set.
  std::function<void(std::uint32_t rank, swap::PathOptions&)> change_path = {};
  /// Faults of the first simulated path of rank `faulty_rank`.
  tiers::FaultPlan faults;
  std::uint32_t faulty_rank = 0;

  [[nodiscard]] bool has_simulated_disks() const { return seed || disk || !disks.empty(); }
  /// A place in the trainer's program. `attempt` counts the abandoned attempts of the step.
  struct ProgramPoint {
    std::uint32_t rank, step, attempt, micro_batch, unit;
    enum class Place : std::uint8_t { forward, backward, gradients_written, before_step } place;
  };
  /// The error that the trainer's own code has there, if any. The rank abandons the step and tries again if the code is
  /// `interrupted`; else it leaves.
  std::function<std::optional<ErrorCode>(const ProgramPoint&)> trainer_error;
  std::uint32_t attempts = 1;  ///< how often a call is made until it succeeds, while the engine can go on
  /// Called after the engine is created, on the rank's thread.
  std::function<void(Engine&, tiers::Stream&)> before_initialize;
  /// Steps before this one are not trained; set `restore` then.
  std::uint32_t first_step = 0;
  bool begins_where_restored = false;  ///< instead, with the step after those that `restore` has restored
  /// Called instead of initialize(), and after the last step; both on the rank's thread.
  std::function<Result<void>(Engine&)> restore, after_steps;
  /// Changes the configuration of the engine but not that of the plan.
  std::function<void(Config&)> spoil_engine_config;
  /// Called after each micro-batch, on the rank's thread.
  std::function<void(Engine&)> after_micro_batch;
  /// Called where the trainer holds no lease: before each unit's forward and backward, and before each step().
  std::function<Result<void>(Engine&, const ProgramPoint&)> without_leases;
  /// Called before each step's forward, once the last update is complete, on the rank's thread.
  std::function<void(std::uint32_t step, std::uint32_t rank, swap::Runtime&)> before_step;

  /// Further engines of the same ranks, in Rank::Options::beside. Each step of the first engine is followed by a step
  /// of each. One with no steps is evaluated instead, before and after, so also beside the first one's update; it has
  /// `initial` values, and the step of its order_of_use is the number of the evaluation. Members from `seed` to
  /// `faulty_rank` are those of the first engine.
  std::vector<RunOptions> beside = {};

  [[nodiscard]] static Config default_config();
};

/// A RunOptions::trainer_error with which every rank abandons steps where a seed says, each step at most three times.
[[nodiscard]] std::function<std::optional<ErrorCode>(const RunOptions::ProgramPoint&)> abandons_anywhere(
    std::uint64_t seed);

/// The result of a run; of rank 0 for values that are equal on all ranks.
struct RunResult {
  std::string digest;
  std::vector<StepOutcome> outcomes;
  std::vector<std::vector<float>> parameters;  ///< as gathered after the last step, unit by unit
  std::optional<Error> error;  ///< the first error of any rank; the other members are then undefined
  std::vector<std::optional<Error>> errors;   ///< of each rank; defined even then
  bool engine_failed = false;                 ///< after an error: that rank 0's engine cannot go on
  ByteCount bytes_read, bytes_written;        ///< of all ranks
  ByteCount shards_written;                   ///< of bytes_written; of rank 0
  ByteCount host_peak, host_budget;           ///< of a rank, at most
  ByteCount device_peak;                      ///< of rank 0: gathered flats and full gradients
  std::vector<std::string> above_prediction;  ///< lines of the ledger whose peak or traffic was not predicted
  std::uint64_t wrong_values = 0, parameters_read = 0;  ///< in evaluations
  std::vector<RunResult> beside;                        ///< of RunOptions::beside: what their trainers record
  std::uint64_t wrong_checkpoints = 0;  ///< that were not read as they were written, of rank 0
  std::uint64_t requests = 0;           ///< of rank 0's simulated disks
  std::uint64_t injected = 0;           ///< number of injected faults; defined even after an error
  std::uint32_t repeated = 0;           ///< repeated calls of all ranks
  /// The errors after which ranks abandoned a step, of all ranks.
  std::vector<std::string> interruptions;
  std::vector<std::string> messages;  ///< the runtimes', of all ranks
};

/// The smallest host budget that the plan of such a run allows, for all ranks.
[[nodiscard]] ByteCount smallest_host_budget(RunOptions options);
/// The size of the largest optimizer tile of such a run.
[[nodiscard]] ByteCount largest_tile(const RunOptions& options);
/// Some of the runs whose device has memory of its own keep offloaded states there: with any number of ranks a tile.
void keep_random_states(RunOptions& options, std::uint64_t seed);
/// Some of the runs update in the backward; then these, and those to which they are compared, do not clip.
void update_in_backward_at_random(RunOptions& options, std::uint64_t seed);

/// Runs a Trainer on each rank.
[[nodiscard]] RunResult train(const RunOptions& options);

}  // namespace penstock::zero::test
