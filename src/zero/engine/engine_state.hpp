#pragma once

#include "zero/engine/caller_gradients.hpp"
#include "zero/engine/checkpoint_pipeline.hpp"
#include "zero/engine/custom_update.hpp"
#include "zero/engine/device_update.hpp"
#include "zero/engine/engine_commits.hpp"
#include "zero/engine/engine_context.hpp"
#include "zero/engine/gather_pipeline.hpp"
#include "zero/engine/gradient_pipeline.hpp"
#include "zero/engine/muon_update.hpp"
#include "zero/engine/offloaded_optimizer.hpp"
#include "zero/engine/optimizer_step.hpp"
#include "zero/engine/parameter_digest.hpp"
#include "zero/engine/parked_contents.hpp"
#include "zero/engine/range_copies.hpp"
#include "zero/engine/shard_reads.hpp"
#include "zero/engine/step_clock.hpp"
#include "zero/engine/timed_accelerator.hpp"
#include "zero/engine/update_sweep.hpp"
#include "zero/engine/wear_limit.hpp"
#include "zero/layout/flat_residency.hpp"

#include <penstock/zero/engine/engine.hpp>

#include <array>
#include <atomic>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace penstock::zero {

/// Whether `kinds` has one of `kind`.
[[nodiscard]] constexpr bool has(ParkKinds kinds, ParkKinds kind) {
  return (kinds & kind) != ParkKinds::none;
}

/// The implementation of one rank's engine: validates each call, lets FlatResidency decide, and starts the pipelines.
/// Used by the trainer's thread.
class EngineState : private FlatResidency::Effects {
 public:
  using Options = Engine::Options;
  using Fill = Engine::Fill;
  using StateSink = Engine::StateSink;
  using StateSource = Engine::StateSource;
  using StepOptions = Engine::StepOptions;
  using Status = Engine::Status;

  /// Ends one call of the engine.
  struct EndCall {
    void operator()(std::atomic<bool>* running) const { running->store(false); }
  };
  using Call = std::unique_ptr<std::atomic<bool>, EndCall>;

  explicit EngineState(Options options);
  ~EngineState() override;
  Result<void> open();

  /// Begins a call, which ends with the result. Errors: failed_state, while another call runs. Safe from any thread.
  [[nodiscard]] Result<Call> enter(const char* operation);
  Result<void> initialize(const Fill& fill);
  /// What becomes of the error of a value with which no run gets better: it is returned, or ok().
  using JudgeValue = std::function<Result<void>(Error error, float value)>;
  Result<void> restore(std::uint64_t step, const StateSource& source);
  Result<void> read_states(const StateSink& sink);
  [[nodiscard]] std::uint64_t completed_steps() const { return context_.completed_steps; }
  [[nodiscard]] std::uint64_t skipped_steps() const { return skipped_steps_; }
  [[nodiscard]] StepTimes step_times() const;
  [[nodiscard]] const LossScaler& loss_scaler() const { return step_.loss_scaler(); }
  Result<void> restore_loss_scaler(const LossScaler::State& state);
  [[nodiscard]] const std::vector<OptimizerGroup>& groups() const { return step_.groups(); }
  Result<void> set_groups(std::vector<OptimizerGroup> groups);
  Result<void> begin_step(const StepOptions& step);
  Result<std::vector<DeviceTensor>> acquire(std::uint32_t unit, tiers::Stream& stream);
  void release(std::uint32_t unit, tiers::Stream& stream) noexcept;
  Result<std::vector<GradientSlot>> gradients(const char* operation, std::uint32_t unit,
                                              tiers::Stream& stream);
  Result<void> reduce(std::uint32_t unit, tiers::Stream& stream);
  Result<void> reduce_copies(std::uint32_t unit, std::span<const GradientSource> gradients,
                             tiers::Stream& stream);
  Result<DeviceSpan> checkpoint(std::uint32_t checkpoint, CheckpointUse use, tiers::Stream& stream);
  void release_checkpoint(std::uint32_t checkpoint) noexcept;
  Result<StepOutcome> step();
  Result<void> finish_update();
  Result<void> abandon_step(tiers::Stream& stream, std::string cause);
  Result<std::string> digest();
  Result<ParkReport> park(tiers::Tier to, ParkKinds kinds,
                          const std::vector<std::filesystem::path>& directories);
  Result<ParkReport> unpark();
  Result<CommitReport> commit(std::span<const std::byte> client);
  Result<void> begin_commit(std::span<const std::byte> client);
  Result<CommitReport> finish_commit();
  Result<std::optional<Resumed>> resume();
  Result<SavedCheckpoint> save_checkpoint(const std::filesystem::path& directory, const SaveOptions& options);
  Result<Resumed> load_checkpoint(const std::filesystem::path& directory);
  [[nodiscard]] ParkKinds parked() const { return parking_.kinds; }
  [[nodiscard]] Status status() const;

  std::string notes;

 private:
  // engine_memory.cpp
  /// Refuses an engine for which the runtime has no room beside its other engines.
  Result<void> join_runtime();
  Result<void> open_memory();
  Result<void> open_results();
  Result<void> open_checkpoints();
  Result<void> add_flat(std::uint32_t index, std::uint64_t& tile_number);
  Result<void> add_shard(FlatState& flat);
  Result<void> add_gradients(FlatState& flat);
  Result<void> add_tiles(std::uint32_t index, std::uint64_t& tile_number);
  Result<void> add_tile(TileState& tile);
  Result<void> add(tiers::TensorId& id, const FlatLayout& flat, TileRange range,
                   tiers::TensorDescription description, bool on_disk);
  void predict();
  void predict_every_order();
  /// Adds what a gather may read from disk to the ledger's prediction.
  void predict_gather(const FlatState& flat);
  /// Adds the disk traffic of a step, or of a part of it, but for its update, as far as it was not predicted yet.
  void predict_attempt(std::uint32_t micro_batches);
  void add_note(std::string note);

  // engine_park.cpp
  /// Errors: failed_state, when any of `kinds` is parked.
  [[nodiscard]] Result<void> check_here(const char* operation, ParkKinds kinds) const;
  [[nodiscard]] Result<void> check_park(tiers::Tier to, ParkKinds kinds,
                                        const std::vector<std::filesystem::path>& directories) const;
  Result<void> finish_use_of(ParkKinds kinds);
  Result<void> wait_for_uses();
  Result<void> store_homes(ParkKinds kinds);
  [[nodiscard]] Result<std::unique_ptr<ParkedContents>> copy_contents(
      tiers::Tier to, ParkKinds kinds, const std::vector<std::filesystem::path>& directories);
  /// What is parked, and where its contents are.
  struct Parking {
    ParkKinds kinds = ParkKinds::none;
    tiers::Tier to{};
    std::unique_ptr<ParkedContents> contents = nullptr;
    swap::RuntimeInternals::Vacated homes = {};  // of what has its home in host memory
    swap::RuntimeInternals::GivenBack given_back = {};
    ParkedContents::Traffic counted = {};  // in the ledger
  };
  /// Compares what the ranks park, and whether each one can.
  enum class ParkCall : std::uint8_t { check, park, unpark };
  Result<void> agree(const char* operation, ParkCall call, const Parking& parking, const Result<void>& mine);
  void hold_parked(ParkReport& report);
  /// A region's memory that was allocated again.
  struct Relocation {
    DeviceRegion* region;
    DeviceSpan replacement;
  };
  Result<void> bring_back(std::vector<Relocation>& relocations);
  void count_traffic();
  void end_parking();

  // engine_park_contents.cpp
  [[nodiscard]] std::vector<DeviceRegion*> regions_of(ParkKinds kinds);
  [[nodiscard]] std::vector<MemoryRange> device_contents_of(ParkKinds kinds) const;
  /// The ranges of host memory that tensors of these kinds keep.
  struct HostRange {
    MemoryRange range;
    bool has_contents;
  };
  [[nodiscard]] std::vector<HostRange> host_ranges_of(ParkKinds kinds) const;
  /// Tensors with a place on disk that have their home in host memory.
  [[nodiscard]] std::vector<tiers::TensorId> homes_of(ParkKinds kinds) const;
  [[nodiscard]] std::vector<std::string> staying() const;
  /// Replaces `range` by where it is in memory that was allocated again; leaves others.
  static void relocate(DeviceSpan& range, std::span<const Relocation> relocations);
  void relocate_ranges(std::span<const Relocation> relocations);

  // engine_commit.cpp
  [[nodiscard]] Result<void> check_durable(const char* operation) const;
  [[nodiscard]] Result<void> check_new_run(const char* operation) const;
  [[nodiscard]] Result<void> check_commit(const char* operation, std::span<const std::byte> client) const;
  [[nodiscard]] Result<void> check_no_commit(const char* operation) const;
  [[nodiscard]] Manifest manifest(std::span<const std::byte> client) const;
  void start_commit();
  Result<CommitReport> end_commit();
  [[nodiscard]] Result<void> check_same_arguments(const std::filesystem::path& directory, std::uint32_t keep);
  Result<void> restore_commit(const char* operation, const RankDirectory::Options& where,
                              const FoundManifest& commit, Resumed& resumed);
  Result<Manifest> restore_own(const char* operation, const RankDirectory::Options& where,
                               const FoundManifest& commit, Resumed& resumed);

  // parameter_states.cpp
  Result<void> restore(const char* operation, std::uint64_t step, const StateSource& source,
                       const JudgeValue& judge);
  Result<void> visit_states(std::span<const cpu_adam::StateKind> kinds, const StateSink& sink);
  Result<void> add_sums_of_peers(ParameterDigest& digest);

  // engine_in_backward.cpp
  [[nodiscard]] bool updates_in_backward() const { return options_.config.penstock.update_in_backward; }
  Result<void> update_reduced();
  [[nodiscard]] bool shard_in_use(std::uint32_t flat) const;
  Result<void> finish_last_update();
  [[nodiscard]] bool update_waits_for_others() const;
  void read_between_updates();

  // engine_step.cpp
  /// What step() does once it has not refused.
  Result<StepOutcome> end_step();

  // engine_checks.cpp
  [[nodiscard]] Result<void> check_not_failed(const char* operation) const;
  [[nodiscard]] Result<void> check_not_interrupted(const char* operation) const;
  [[nodiscard]] Result<void> ready(const char* operation) const;
  [[nodiscard]] Result<void> between_steps(const char* operation) const;
  /// Of a call that sets all values: before it changes any.
  [[nodiscard]] Result<void> check_restorable(const char* operation) const;
  /// Errors: failed_state, once an update has begun within the backward.
  [[nodiscard]] Result<void> check_not_updating(const char* operation) const;
  [[nodiscard]] Result<void> check_before_update(const char* operation, std::uint32_t unit) const;
  [[nodiscard]] Result<void> check_step(const StepOptions& step) const;
  [[nodiscard]] Result<void> check_wear(const char* operation) const;
  [[nodiscard]] Result<void> check_units_without_gradient(const std::vector<std::uint32_t>& units) const;
  [[nodiscard]] Result<void> check_unit(const char* operation, std::uint32_t unit) const;
  [[nodiscard]] Result<void> check_stream(const char* operation, const tiers::Stream& stream) const;
  /// Whether no move of this engine is in flight. Call with the runtime's lock held.
  [[nodiscard]] bool moves_are_idle() const;
  /// Blocks until none is, so that the next collective is the first in their order.
  ///
  /// Errors, of this rank only, after which the call can be repeated: that of an update that has stopped, for which a
  /// gather waits (`updated`, if this call has got it before); that of a write-behind, for whose memory one may wait.
  Result<void> finish_moves(const Result<void>& updated = ok());

  /// What a stream of the trainer does with a unit, in a timeline.
  void begin_on_stream(tiers::Stream& stream, const char* use, std::uint32_t unit);
  void end_on_stream(tiers::Stream& stream, const char* use, std::uint32_t unit);

  // FlatResidency::Effects
  Result<void> gather(std::uint32_t flat) override;
  Result<void> drop(std::uint32_t flat) override;
  Result<void> open_gradient(std::uint32_t flat) override;
  Result<void> reduce(std::span<const std::uint32_t> flats) override;
  Result<void> finish_gradient(std::uint32_t flat) override;

  const Options options_;
  TimedAccelerator timed_;
  EngineContext context_;
  GatherPipeline gathers_;
  GradientPipeline gradients_;
  CallerGradients caller_gradients_;
  std::optional<CheckpointPipeline> checkpoints_;  // once there is memory for them
  DeviceUpdate device_update_;
  CustomUpdate custom_update_;
  MuonUpdate muon_update_;
  OffloadedOptimizer optimizer_;
  UpdateSweep update_;
  OptimizerStep step_;
  ShardReads shard_reads_;
  StepClock clock_;
  std::size_t units_to_reduce_ = 0;     // in a micro-batch
  std::vector<std::uint32_t> reduced_;  // flats that update_reduced() may add to the update
  WearLimit wear_;
  std::optional<std::string> worn_;  // why no step begins any more
  struct {
    bool gathered = false, gradients = false;
  } predicts_most_;  // what every order takes

  std::unique_ptr<tiers::MemoryBudget> device_budget_;  // of gathered flats and full gradients
  DeviceRegion communicator_scratch_;                   // only counted
  // Limits the leases of shards in place. Has a ledger of its own: the runtime's counts the shards.
  tiers::Ledger leases_ledger_;
  std::unique_ptr<tiers::MemoryBudget> leases_;
  std::optional<FlatResidency> residency_;
  std::vector<tiers::TensorId> tensors_;      // the tensors that this engine has added to the runtime
  tiers::Stream* gradient_stream_ = nullptr;  // the stream given to the current gradients() call
  bool joined_ = false, pinned_ = false, initialized_ = false;
  std::optional<EngineCommits> commits_;  // if the run is durable
  std::uint64_t skipped_steps_ = 0;
  Parking parking_;
  std::array<ByteCount, tiers::tier_count> parked_max_ = {};  // that the ledger predicts
  std::atomic<bool> in_call_{false};
};

}  // namespace penstock::zero
