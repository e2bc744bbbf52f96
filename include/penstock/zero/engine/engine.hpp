#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/base/time.hpp>
#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/cpu_adam/state_format.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/commit.hpp>
#include <penstock/zero/engine/leases.hpp>
#include <penstock/zero/engine/park.hpp>
#include <penstock/zero/engine/update_segment.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

class RankDirectory;
class EngineState;

struct StepOutcome {
  enum class Kind : std::uint8_t { updated, skipped } kind = Kind::updated;
  std::string skip_reason;   ///< why nothing was updated
  double gradient_norm = 0;  ///< over all ranks, unscaled
  double clip_factor = 1;    ///< factor that clipped the gradients
  double learning_rate = 0;  ///< of this step, skipped or not
  double loss_scale = 1;     ///< of these gradients; Engine::loss_scaler() has that of the next ones
  std::uint64_t step = 0;    ///< step number of the state after the update
  /// How long step() waited for gradients: on a device that runs its streams by itself for the rest of the backward
  /// too, else only for the part of their reduction that did not overlap with it.
  std::chrono::nanoseconds gradient_wait{0};
  /// How long the last update before this step's took, beside the trainer: that of the step before this one, unless it
  /// was skipped; 0 if there was none.
  std::chrono::nanoseconds previous_update{0};
  /// How many of this rank's elements the CPU and the device updated then; see penstock.update_split.
  ElementCount updated_by_cpu, updated_on_device;
  /// What the trainer's thread took for this step: from the first acquire() of each micro-batch to its first
  /// gradients(), from there to its last reduce(), and in step(). A device that runs its streams by itself may be
  /// behind it: what remains of its work is in `gradient_wait`, which is a part of `stepping`.
  std::chrono::nanoseconds forward{0}, backward{0}, stepping{0};
};
/// How long the steps of an engine have taken, together.
struct StepTimes {
  std::uint64_t steps = 0;                                        ///< updated or skipped
  std::uint64_t micro_batches = 0;                                ///< of these steps
  std::chrono::nanoseconds forward{0}, backward{0}, stepping{0};  ///< as in StepOutcome
  /// From the end of a step to the next one, and between their parts, without waits: the trainer's own work, such as
  /// loading data.
  std::chrono::nanoseconds between{0};
  std::chrono::nanoseconds waiting{0};   ///< of the steps, for parameters, updates, checkpoints and tensors
  std::chrono::nanoseconds updating{0};  ///< of the CPU or the device, without their waits for tiles
};

/// The ZeRO-3 engine of one rank: gathers units before they are used, reduces their gradients, and updates the shards
/// in the tier where they are kept.
///
///     engine.begin_step({.micro_batches = 1}).value();
///     auto weights = engine.acquire(unit, stream).value();        // enqueue the forward on `stream`
///     weights.end();                                              // …
///     auto gradients = engine.gradients(unit, stream).value();    // enqueue the backward, which writes slots()
///     engine.reduce(std::move(gradients), stream).value();
///     StepOutcome outcome = engine.step().value();                // once every unit was reduced
///
/// step() returns with the verdict; the update of the parameters runs beside the next forward. acquire() waits for
/// those of its unit. gradients(), the next step(), restore(), read_states(), digest() and finish_update() wait for all
/// of them. Each call that waits returns the error of an update that has stopped, and the next call continues the
/// update.
///
/// With penstock.update_in_backward a unit's parameters are updated once their last gradient of the step is reduced,
/// beside the backward of the units before it, or after step() where a commit is in progress. Until step(), acquire()
/// of that unit returns failed_state, and so do read_states(), digest(), set_groups() and abandon_step() once any
/// update has begun. Such a step can only be completed: gradients() and reduce() of what is missing, then step(). A
/// gradient with which step() would skip fails the engine: non_finite.
///
/// create, initialize, restore, resume, load_checkpoint, acquire, gradients, reduce, begin_step, step, commit,
/// finish_commit, save_checkpoint, abandon_step, park, unpark and digest are collective: every rank calls them in the
/// same order. They are called from one thread, the trainer's: a call during another one returns failed_state, as does
/// a call of a step before initialize(), restore() or resume(). Each stream that is passed is one of the engine's
/// device, else invalid_argument; a unit may be used on several. All but reduce(UnitGradients) may block. The device
/// budget is planned for one UnitLease at a time.
///
/// After an error, status() tells which calls are allowed:
///
/// | status      | what changed                                                | what to call                      |
/// |-------------|-------------------------------------------------------------|-----------------------------------|
/// | ready       | nothing by the call; initialize() and restore(): all values | the same call, or the correct one |
/// | interrupted | nothing; a peer has called abandon_step()                   | abandon_step()                    |
/// | failed      | unknown; the peers get the cause                            | nothing: destroy the engine       |
///
/// An error that leaves the engine ready concerns this rank only. Examples: an invalid argument; a failed write-behind,
/// whose bytes stay in memory; a tile that cannot be read, so that the update has stopped. The peers wait in the
/// collective until a call of this rank succeeds.
///
/// The destructor leaves the group: the communicator cannot be used by another engine.
class Engine {
 public:
  struct Options {
    swap::Runtime* runtime = nullptr;  ///< this rank's; outlives the engine
    tiers::Device* device = nullptr;
    Compute* compute = nullptr;  ///< of that device
    /// Of that device. Needed if the plan has tiles that the device updates: MemoryPlan::Update::device_slots is above
    /// 0.
    cpu_adam::DeviceAdam* adam = nullptr;
    Communicator* communicator = nullptr;  ///< of the data-parallel group
    parallel::Workers* workers = nullptr;  ///< threads of the updates
    Config config = {};
    ModelLayout model = {};
    MemoryPlan plan = {};        ///< from plan_memory(); the runtime was created from it too
    UpdateFunction update = {};  ///< the optimizer, for optimizer.type "Custom" and only for it
    /// Distinguishes engines on one runtime: the owner in their tensors' keys. For several engines, create the runtime
    /// from shared_runtime_options(), and all engines before the first one gets values.
    std::uint32_t engine_number = 0;
    /// Whether this engine's steps end the runtime's rounds of uses, from which it predicts the next one. Of several
    /// engines on one runtime, one does.
    bool ends_rounds = true;
    /// The rank's part of penstock.durable_directory, which Rank opens; outlives the engine. Null: the run is not
    /// durable.
    RankDirectory* directory = nullptr;
    /// Copies that make no progress for longer, and waits of a call for a stream, fail the engine with
    /// deadline_exceeded. Longer than all that the trainer enqueues ahead takes. The memory that the device may still
    /// use is then never used again, in any tier, and the destructor does not wait for it.
    TimePoint device_deadline = std::chrono::minutes(30);
    std::function<void(const StepOutcome&)> after_step = {};  ///< called by step() before it returns
  };

  /// Reserves the memory and the disk space of all tensors in the tiers that the plan assigns.
  ///
  /// Errors: invalid_config, for the configuration, and for an update function that it does not name or lacks;
  /// invalid_argument, for the layout, and for a deadline that is not above 0; already_exists, for the number of
  /// another engine of the runtime; budget_too_small, for the device, and when the runtime's other engines leave too
  /// little host memory; no_space, when they leave too little of the swap files. Nothing has been allocated then.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(Options options);
  /// Waits for operations in flight. Precondition: the caller's streams have executed all work that uses the engine's
  /// tensors, unless the device has reached Options::device_deadline.
  ~Engine();

  /// Writes initial values [first, first + values.size()) of `parameter` into `values`, which contains zeros. Called
  /// for this rank's shard only, piece by piece.
  using Fill = std::function<void(ParameterId parameter, std::uint64_t first, std::span<float> values)>;
  /// Sets the initial value of every parameter, clears the moments and sets the step to 0. The full model is never in
  /// memory. Errors: as for restore().
  Result<void> initialize(const Fill& fill);

  /// Receives values [first, first + values.size()) of one state of `parameter`, at most 16384 of them. An error ends
  /// read_states(), which returns it.
  using StateSink = std::function<Result<void>(ParameterId parameter, cpu_adam::StateKind kind,
                                               std::uint64_t first, std::span<const float> values)>;
  /// Reads the masters and the moments that the optimizer keeps of this rank's shards, tile by tile; of frozen
  /// parameters their values, as masters. All ranks together pass each value of each parameter once. The states belong
  /// to step completed_steps(), also in the middle of the next one. Not collective.
  Result<void> read_states(const StateSink& sink);
  /// Writes values [first, first + values.size()) of one state of `parameter`, at most 262144 of them, into `values`,
  /// which contains zeros. An error ends restore().
  using StateSource = std::function<Result<void>(ParameterId parameter, cpu_adam::StateKind kind,
                                                 std::uint64_t first, std::span<float> values)>;
  /// Sets the masters and moments of this rank's shards as of step `step`, which must be equal on all ranks. Of frozen
  /// parameters asks for masters alone. With the
  /// states that read_states() passed for the same configuration, the run continues with the same result. The number of
  /// ranks, the division into units and the state format may differ from those of the run that was saved.
  ///
  /// Errors: failed_state, in the middle of a step and while a UnitLease is held, and invalid_argument, for a step
  /// above 2^62 (nothing has changed then); invalid_argument, naming the parameter, for a state that is not finite or,
  /// without Options::update, a negative second moment; those of `source` and of the tiers. The parameters have no
  /// values then, until restore() or initialize() succeeds.
  Result<void> restore(std::uint64_t step, const StateSource& source);
  /// The number of the last step that updates the parameters, from the end of its step() on; 0 after initialize().
  [[nodiscard]] std::uint64_t completed_steps() const;
  /// Since create(). Safe from any thread.
  [[nodiscard]] StepTimes step_times() const;
  /// How many steps have been skipped, with those before resume() and load_checkpoint().
  [[nodiscard]] std::uint64_t skipped_steps() const;
  /// The scale by which the caller multiplies the loss of each micro-batch of the next step; equal on all ranks. Only
  /// step() moves it, if fp16's loss scale is dynamic; initialize() and restore() begin it anew.
  [[nodiscard]] const LossScaler& loss_scaler() const;
  /// Continues the loss scale of a run that was saved: `state` is that of its loss_scaler(). Equal on all ranks.
  ///
  /// Errors: those of LossScaler::restore(); failed_state, in the middle of a step. They change nothing.
  Result<void> restore_loss_scaler(const LossScaler::State& state);

  /// The settings of the optimizer groups; at first those of the layout.
  [[nodiscard]] const std::vector<OptimizerGroup>& groups() const;
  /// Replaces them from the next step() on, between steps or within one. Equal on all ranks: step() compares them.
  ///
  /// Errors: invalid_argument, for another number of groups, for another OptimizerGroup::frozen or use_muon, and for
  /// settings that validate() refuses; failed_state.
  /// They change nothing.
  Result<void> set_groups(std::vector<OptimizerGroup> groups);

  struct StepOptions {
    /// How many times each unit is reduced before step(); default: gradient_accumulation_steps of the configuration.
    /// Their gradients are added, not averaged: the caller divides each micro-batch's loss by this number.
    std::optional<std::uint32_t> micro_batches = {};
    std::optional<double> learning_rate = {};  ///< default: that of the configuration, see scheduler
    /// Units that get no gradient in this step, because it does not use them: they are neither passed to gradients()
    /// nor to reduce(), and step() leaves their parameters and moments as they are. A unit whose parameters another
    /// unit shares can be listed only together with that one. Units whose parameters are all frozen need not be listed.
    /// Steps in which a unit gets none count for its bias correction, as in DeepSpeed and unlike in PyTorch.
    std::vector<std::uint32_t> units_without_gradient = {};
  };
  /// Starts a step; units that were acquired since the last one, for an evaluation, are no part of it. All ranks pass
  /// the same options: step() reports a difference. A step that is not started with begin_step() keeps the options of
  /// the last one that was.
  ///
  /// Errors: invalid_argument, for zero micro-batches, a learning rate that is negative or not finite, and a unit that
  /// does not exist, is listed twice or cannot be listed alone; no_space, naming the drive, when a rank of the run
  /// would write more than penstock.endurance_cap (gradients() returns it too: commit(), and end the run);
  /// failed_state, once a unit has been passed to gradients() or reduce(), and while a CheckpointLease is held. They
  /// change nothing.
  Result<void> begin_step(const StepOptions& options);
  /// Gathers the unit's parameters. Work that is enqueued on `stream` after this call may read them. `stream` outlives
  /// the lease.
  ///
  /// Errors: budget_too_small, naming the leases and the gradients that hold the device memory: end one, and repeat the
  /// call; those of the tiers, and of finish_update().
  [[nodiscard]] Result<UnitLease> acquire(std::uint32_t unit, tiers::Stream& stream);
  /// Allocates the unit's full gradient. Work that is enqueued on `stream` after this call may write it; of units that
  /// share a parameter it waits for what those before have enqueued until their reduce(). Called again before reduce(),
  /// returns the same slots, and their contents are undefined again.
  ///
  /// Errors: as for acquire(); invalid_argument, when all parameters of the unit are frozen, when every micro-batch of
  /// the unit was reduced already, before the units that share a parameter have reduced theirs, and for a repeated call
  /// of a unit that shares parameters.
  [[nodiscard]] Result<UnitGradients> gradients(std::uint32_t unit, tiers::Stream& stream);
  /// Averages the gradients over ranks and adds this rank's shard to that of the previous micro-batches. Divides by the
  /// number of ranks, not by that of micro-batches: see StepOptions::micro_batches. The work that writes the gradients
  /// must be enqueued on `stream` before this call. Does not wait.
  ///
  /// Errors: invalid_argument, for gradients that this engine's gradients() did not return, that were moved from,
  /// reduced before, or are of a step that was abandoned.
  Result<void> reduce(UnitGradients gradients, tiers::Stream& stream);
  /// The same for gradients in memory of the caller, one for each parameter of the unit in the order of UnitLayout: its
  /// own, then those it shares. Copies them, rounded to the configuration's dtype, on `stream`, or adds them to those
  /// of another unit, and rounds the sum; until it has executed the copies they must not change. Replaces gradients()
  /// and reduce(), and waits as gradients() does.
  ///
  /// Errors: those of gradients(); invalid_argument, for another number of gradients or of elements, and for memory of
  /// this engine. They change nothing.
  Result<void> reduce(std::uint32_t unit, std::span<const GradientSource> gradients, tiers::Stream& stream);
  /// Leases activation checkpoint `checkpoint` of ModelLayout::checkpoints. Work that is enqueued on `stream` after
  /// this call may use its bytes: after `write` they are undefined, else as they were written in this step. While a
  /// checkpoint has no lease, its bytes may move to host memory or to disk and back; from the second step on they come
  /// back before their use, if each step uses checkpoints in the same order. One lease of a checkpoint at a time.
  /// `stream` outlives the lease. Not collective.
  ///
  ///     auto out = engine.checkpoint(k, CheckpointUse::write, stream).value();     // forward of layer k
  ///     out.end();                                                                 // …
  ///     auto in = engine.checkpoint(k, CheckpointUse::last_read, stream).value();  // its backward
  ///
  /// Errors: invalid_argument, for a checkpoint that does not exist, is leased, or is read before it was written in
  /// this step; budget_too_small, naming the leased ones, when there is no memory for another one (nothing has
  /// changed); those of the tiers, and of finish_update().
  [[nodiscard]] Result<CheckpointLease> checkpoint(std::uint32_t checkpoint, CheckpointUse use,
                                                   tiers::Stream& stream);
  /// Clips the gradients and starts the update of this rank's shards, or skips the step with a reason: the norm of the
  /// gradients is not finite, or after clipping still so large that the square of a gradient of that norm overflows
  /// fp32; unless the configuration says otherwise, see Config::skips_non_finite_gradients(). Blocks until every
  /// gradient is reduced and every rank has called it.
  ///
  /// Errors: invalid_argument, when a gradient is missing; invalid_config, naming the setting, when ranks have
  /// different model layouts, StepOptions or settings of the configuration that the result depends on (the engine has
  /// failed then), or the scheduler gives a beta that is not below 1; non_finite, when gradients overflow although the
  /// dynamic loss scale is at its minimum (the step was skipped); those of the tiers.
  [[nodiscard]] Result<StepOutcome> step();
  /// Blocks until the parameters of this rank are updated. Not collective.
  ///
  /// Errors: those of the tiers; corrupted, if parameters and tiles are of different steps; non_finite, if a master or
  /// a moment is not finite although such steps are skipped; failed_state, naming the segment, if Options::update has
  /// returned an error or thrown an exception. The engine has failed after the last three.
  Result<void> finish_update();

  /// Gives up the step in progress, for example after an exception in a forward or backward: discards its gradients.
  /// The parameters are those of the last step, and the next step can begin. The peers' current or next call returns
  /// `interrupted` with `cause`; then they call abandon_step() too. Waits until every rank has called it, and until
  /// `stream`, and the streams of leases that have ended and of gradients that were reduced, have executed the work
  /// that uses the engine's tensors. Between two steps it changes nothing, and meets the peers.
  ///
  /// Errors: failed_state, while a UnitLease or a CheckpointLease is held, and once penstock.update_in_backward has
  /// begun to update (nothing has changed; where a peer has abandoned the step, the engine has failed then);
  /// peer_failed, when a peer leaves instead.
  Result<void> abandon_step(tiers::Stream& stream, std::string cause = "");

  /// A digest of the master weights of all ranks, 32 hexadecimal digits, from each parameter's name, place in layout
  /// order and values: it does not depend on units, the number of ranks, the tier and the tile size.
  /// The masters that training gives do, in formats split_bf16 and split_q8: their rounding follows the shards.
  [[nodiscard]] Result<std::string> digest();

  /// Makes the run durable as of the last step: from now on a process that is created with the same
  /// penstock.durable_directory continues it with resume(), whatever ends this one, a power cut included, until the
  /// next commit is complete. Between two steps; waits for the last step's update. Writes what is not in the swap files
  /// yet, and a manifest. `client`: at most 1 GiB of the trainer, such as the position in its data, on each rank.
  ///
  /// Errors, of which all ranks get one: failed_state, without a durable directory, within a step, and while anything
  /// is parked; no_space and io, with the file; those of finish_update(). The last commit is as it was then, training
  /// may go on, and the call can be repeated. Where units of the next step were acquired already, this rank alone may
  /// get that of finish_update(): then it repeats the call, for which its peers wait. So do save_checkpoint() and
  /// park().
  Result<CommitReport> commit(std::span<const std::byte> client = {});
  /// The same in two calls, so that the bytes are written behind the next step, which changes none of them before its
  /// update:
  ///
  ///     engine.begin_commit(client);            // as of the last step
  ///     …                                       // the next step
  ///     engine.step();                          // completes the commit before its update
  ///     auto report = engine.finish_commit();   // its outcome
  ///
  /// begin_commit() is local, does not block, and starts once the last step's update is complete. The next step(), or
  /// finish_commit() before it, completes the commit: until then the last one stays, also where the engine is
  /// destroyed. An error of the commit is none of that step: finish_commit() returns it, between two steps, at once or
  /// after any number of them. Until then park(), initialize(), restore(), resume(), load_checkpoint(),
  /// save_checkpoint() and another commit are refused with failed_state. CommitReport::stall: how long calls waited.
  ///
  /// Errors: those of commit(). After one of finish_commit() of which all ranks get one, no commit is in progress.
  Result<void> begin_commit(std::span<const std::byte> client = {});
  Result<CommitReport> finish_commit();
  /// Sets all values to those of the last commit in the durable directory; instead of initialize() or restore().
  /// Nothing, if it has none. The number of ranks, stage, tiers, tiles, state format and paths may differ from those of
  /// the run that committed, if each rank can read the directories of all: the result is that of restore().
  ///
  /// Errors: invalid_argument, naming the parameter or the setting, for the commit of another model or optimizer;
  /// corrupted, with the file and the offset; those of restore(). All ranks get one, and no rank has values then.
  [[nodiscard]] Result<std::optional<Resumed>> resume();

  /// Commits, and copies the commit to a new subdirectory `global_step` + completed_steps() of `directory`: by reflink
  /// where the file system has it and the durable directory is on the same one, else at the drives' speed, through 4
  /// buffers of 32 blocks. The copy is complete by itself: load_checkpoint() and `penstock inspect`, `verify` and
  /// `export` read it. Then the file `directory`/latest names it. With SaveOptions::keep, the oldest complete
  /// checkpoints of this run are removed. Each rank writes a subdirectory of its own; all pass the same arguments but
  /// `client`. The directory is made, with mode 0700, if it does not exist. Blocks as long as the drives do.
  ///
  /// Errors, of which all ranks get one: those of commit(); invalid_argument, for other arguments than a peer's, and a
  /// `latest` that is no file; already_exists, for a complete checkpoint of this step; corrupted, with the file and the
  /// offset, for bytes that are not those of the commit; no_space, in_use, permission and io, with the file. `latest`
  /// and earlier checkpoints are as they were then, and the run may go on. io also if `latest` cannot be replaced or an
  /// earlier one cannot be removed: the new one is complete, as the error says.
  Result<SavedCheckpoint> save_checkpoint(const std::filesystem::path& directory,
                                          const SaveOptions& options = {});
  /// Sets all values to those of a checkpoint; instead of initialize(), restore() or resume(). `directory`: what
  /// save_checkpoint() was called with, for the one that `latest` names, or one of its subdirectories. The run needs no
  /// durable directory. What may differ from the run that saved, and the result: as of resume().
  ///
  /// Errors, of which all ranks get one: not_found, without a checkpoint; failed_state, if the run's durable directory
  /// has a commit; those of resume().
  [[nodiscard]] Result<Resumed> load_checkpoint(const std::filesystem::path& directory);

  /// Gives the memory of `kinds` back, so that another program can use it: DeepSpeed's offload_states. Between steps or
  /// within one, while no UnitLease, CheckpointLease or UnitGradients is outstanding. Gathered flats are dropped. Every
  /// rank passes the same `to` and `kinds`. Waits for the last step's update, for reductions in flight, and for the
  /// trainer's streams that have used the engine's tensors.
  ///
  /// With Tier::host the memory of the device leaves: its contents are copied to host memory that is allocated beside
  /// the runtime's. With Tier::nvme what tensors of these kinds keep in host memory leaves too, as far as they fill
  /// pages of 2 MiB: the contents are written to swap files without names in `directories`, by default those of the
  /// runtime, through at most 64 MiB of staging. Each block has a checksum. Several directories are measured first, for
  /// a third of a second, unless they are the runtime's. Host memory is then not registered with the device until
  /// unpark(), whichever kinds are parked; it does not leave at all while it is registered for several engines of the
  /// runtime. The ledger counts its ranges as held, because they stay reserved.
  ///
  /// Until unpark(), calls that need what is parked return failed_state: with the parameters, all but
  /// finish_update(), set_groups(), restore_loss_scaler() and those that only read a number; with the gradients, those
  /// of a step but acquire() and checkpoint(), restore() and initialize(); with the optimizer, step(), digest(),
  /// read_states(), restore() and initialize(); commit() and resume() always. A step is abandoned after unpark(). The
  /// engine may be destroyed.
  ///
  /// Errors: invalid_argument, for no kinds, Tier::device, arguments that differ between ranks, directories with
  /// Tier::host, and for Tier::nvme without any directory; failed_state, naming what is outstanding, and while anything
  /// is parked; no_space, where a rank's machine lacks the memory or a directory the space; those of Runtime::create()
  /// for a directory, of the tiers, and of finish_update(). They change nothing, and each is returned on all ranks.
  [[nodiscard]] Result<ParkReport> park(tiers::Tier to, ParkKinds kinds = ParkKinds::all,
                                        const std::vector<std::filesystem::path>& directories = {});
  /// Brings back what is parked, with the same bits: DeepSpeed's reload_states. On the device it gets other addresses.
  ///
  /// Errors: failed_state, if nothing is parked; budget_too_small and no_space, while a rank's device or machine has
  /// too little free memory, and those of the device and the disk: everything stays parked, and the call can be
  /// repeated (a swap file that cannot be read any more returns its error each time: restore() the run into a new
  /// engine); corrupted, naming the tensor, after which the engine has failed.
  [[nodiscard]] Result<ParkReport> unpark();
  [[nodiscard]] ParkKinds parked() const;

  enum class Status : std::uint8_t { ready, interrupted, failed };
  [[nodiscard]] Status status() const;
  /// Requested features that are not available, in one line; empty if all are.
  [[nodiscard]] const std::string& notes() const;

 private:
  explicit Engine(std::shared_ptr<EngineState> state);
  std::shared_ptr<EngineState> state_;  // shared so that leases know whether it exists
};

}  // namespace penstock::zero
