#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/cpu_adam/device_adam.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/host_device.hpp>
#include <penstock/tiers/memory/memory_limits.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/launch/rank_identity.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>
#include <penstock/zero/report/monitor_event.hpp>
#include <penstock/zero/report/run_report.hpp>

#include <chrono>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

/// The accelerator of one rank: memory, streams, elementwise operations, and the optimizer.
struct Accelerator {
  std::unique_ptr<tiers::Device> device;
  std::unique_ptr<Compute> compute;
  std::unique_ptr<cpu_adam::DeviceAdam> adam;  ///< null: for plans in which the CPU updates all tiles
};
/// Creates an accelerator that uses `memory` bytes of host memory as its device memory, or a HostDevice with `options`.
[[nodiscard]] Accelerator make_host_accelerator(ByteCount memory);
[[nodiscard]] Accelerator make_host_accelerator(const tiers::HostDevice::Options& options);
/// Creates the accelerator of CUDA device number `ordinal`, and loads its kernels. Calls of the rank leave this device
/// current in the calling thread.
///
/// Errors: unsupported, if this build has no CUDA or no kernels for the device's compute capability, or with the
/// driver's reason; invalid_argument, for a device that does not exist.
[[nodiscard]] Result<Accelerator> make_cuda_accelerator(int ordinal);
/// A Stream of CUDA device number `ordinal` for the caller's `stream`, a cudaStream_t, which outlives it; null is the
/// device's default stream. Its destruction neither waits for the stream nor destroys it.
///
/// Errors: invalid_argument, for a stream of another device or a device that does not exist; unsupported, as above.
[[nodiscard]] Result<std::unique_ptr<tiers::Stream>> wrap_cuda_stream(int ordinal, void* stream);

/// Functions with which a test changes a rank's parts. Each may be empty.
struct RankHooks {
  /// Changes the options with which the rank is about to create its runtime: file systems, I/O engines and faults of
  /// the paths, an idle handler.
  std::function<void(swap::RuntimeOptions&)> runtime_options = {};
  /// Of a durable run: changes how its directories are judged, and how manifests and the copies of what is in memory
  /// are read and written.
  std::function<void(swap::PathOptions&)> durable_files = {};
  std::function<void(Engine::Options&)> engine_options = {};
  /// What limits the memory, for penstock.memory_reserve; instead of tiers::memory_limit().
  std::function<tiers::MemoryLimit()> memory_limit = {};
  /// Called after the engines are destroyed and before its runtime is.
  std::function<void(swap::Runtime&)> engine_destroyed = {};
};

/// An engine beside a rank's first one, such as that of a frozen reference model.
struct EngineBeside {
  Config config;
  ModelLayout model;
  /// Its own, of the same ranks: each engine has an order of collectives of its own. Empty: as in Rank::Options.
  GroupMembership group = {};
  UpdateFunction update = {};  ///< see Engine::Options
};

/// One rank of a training run; a trainer embeds one per rank. Plans the memory, creates workers, runtime, accelerator,
/// communicator and engine from the plan, and destroys them in the right order.
///
///     auto config = zero::Config::from_file("ds_config.json", /*world_size=*/1).value();
///     auto rank = zero::Rank::create({.config = config, .model = layout}).value();
///     zero::Engine& engine = rank->engine();
///     engine.initialize(fill).value();
///     auto stream = rank->device().create_stream().value();
///     for each step: engine.begin_step(…); for each unit: engine.acquire(unit, *stream) …; engine.step();
///
/// The parts can also be created separately: plan_memory(), swap::Runtime, Engine.
///
/// A rank may have several engines, see Options::beside: a trained actor and a frozen reference, for example, or an
/// actor and a critic. They share host memory, swap files, workers and accelerator; each has its own communicator and
/// its own part of the device's memory. Each is called as if it were alone; all by the trainer's thread.
///
/// Used by the trainer's thread. create() and the destructor block. Before the rank is destroyed, the trainer's streams
/// must have executed all work that uses the engine's tensors, and everything that the trainer created on device(),
/// including streams, must be destroyed.
class Rank {
 public:
  struct Options {
    Config config;
    ModelLayout model;
    RankIdentity identity = {};
    /// Creates the accelerator. The engine uses at most `engine_budget` bytes of it; add the memory that the trainer
    /// needs. Empty: `engine_budget` bytes of host memory.
    std::function<Result<Accelerator>(ByteCount engine_budget)> make_accelerator = {};
    /// Empty: a group of one rank, which is an error for identity.ranks > 1. See in_process_membership().
    GroupMembership group = {};
    /// Runs updates and checksums; must outlive the rank. Null: the rank creates its own workers. Their number is
    /// penstock.threads; if that is 0, the cores of this machine divided by its ranks.
    parallel::Workers* workers = nullptr;
    UpdateFunction update = {};  ///< see Engine::Options
    RankHooks hooks = {};
    /// Further engines, engines()[1] and so on. The device is that of all, and so is the runtime: it has the sum of
    /// the host budgets, each from its own configuration, and what they need beyond it (see
    /// shared_runtime_options()). Put first, as `config` and `model`, an engine that trains: its steps end the
    /// runtime's rounds of uses.
    std::vector<EngineBeside> beside = {};
    /// Gets the lines of wall_clock_breakdown, without their ends, from the thread that calls step(). Empty: they are
    /// written to standard error.
    std::function<void(std::string_view)> log = {};
    std::uint32_t engine_number = 0;  ///< see Engine::Options; engines()[i] has this number plus i
    TimePoint device_deadline = std::chrono::minutes(30);  ///< see Engine::Options
  };

  /// If it fails, the collectives of the peers fail with the cause.
  ///
  /// Errors: invalid_config and invalid_argument, naming the key or argument; budget_too_small and no_space, with the
  /// required size; those of the device, the group and the swap directories, and of files for monitors and reports.
  [[nodiscard]] static Result<std::unique_ptr<Rank>> create(Options options);
  ~Rank();

  [[nodiscard]] Engine& engine();
  /// engine(), then those of Options::beside.
  [[nodiscard]] std::span<Engine* const> engines();
  [[nodiscard]] swap::Runtime& runtime();
  [[nodiscard]] tiers::Device& device();
  [[nodiscard]] Compute& compute();
  [[nodiscard]] parallel::Workers& workers();
  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const ModelLayout& model() const;
  [[nodiscard]] const MemoryPlan& plan() const;
  /// plan(), then those of Options::beside.
  [[nodiscard]] std::span<const MemoryPlan* const> plans() const;
  [[nodiscard]] const RankIdentity& identity() const;
  /// Requested features that are not available, one per line; also those that have ended with an error, such as a
  /// monitor whose file cannot be written any more, and the host budget with which memory that was idle when the rank
  /// was created would keep optimizer tiles.
  [[nodiscard]] std::vector<std::string> notes() const;

  /// What the rank has taken and moved since create(), what its calls have waited for, and what would shorten its steps
  /// most. That is simulated, step for step, from what was measured: `with_changes` takes seconds for a large model.
  /// Safe from any thread, from the end of create() to the call of the destructor.
  [[nodiscard]] RunReport report(bool with_changes = true) const;
  /// Adds figures of the trainer, such as its loss, to the files of csv_monitor and tensorboard. Only rank 0 writes;
  /// nothing where neither is enabled. By the thread that calls step().
  ///
  /// Errors: invalid_argument, for a name that is empty or has control characters; those of the files, after which
  /// nothing more is written to them.
  Result<void> write_events(std::span<const MonitorEvent> events);

 private:
  struct State;
  explicit Rank(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::zero
