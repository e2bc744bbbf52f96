#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace penstock::zero {

class Engine;

/// The gathered parameters of a unit, on the device. While it lives they stay and stay put; ended by end()
/// or on destruction, in the order of the stream it was acquired with. Move-only.
class UnitLease {
 public:
  UnitLease() = default;
  UnitLease(UnitLease&& other) noexcept { swap(other); }
  UnitLease& operator=(UnitLease&& other) noexcept {
    end();
    swap(other);
    return *this;
  }
  ~UnitLease() { end(); }

  /// In the order of UnitLayout: its own parameters, then those it shares.
  [[nodiscard]] std::span<const DeviceTensor> parameters() const { return parameters_; }
  void end() noexcept;

 private:
  friend class Engine;
  void swap(UnitLease& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(unit_, other.unit_);
    std::swap(parameters_, other.parameters_);
  }
  Engine* engine_ = nullptr;
  std::uint32_t unit_ = 0;
  std::vector<DeviceTensor> parameters_;
};

/// Where one parameter's gradient goes.
struct GradientSlot {
  DeviceTensor tensor;      ///< of the configuration's dtype
  bool accumulate = false;  ///< add to what is there; false: overwrite, nothing is there
};

/// The full gradient of a unit, to be written by its backward and then handed to reduce().
class UnitGradients {
 public:
  [[nodiscard]] std::span<const GradientSlot> slots() const { return slots_; }

 private:
  friend class Engine;
  std::uint32_t unit_ = 0;
  std::vector<GradientSlot> slots_;
};

struct StepOutcome {
  enum class Kind : std::uint8_t { updated, skipped } kind = Kind::updated;
  std::string skip_reason;   ///< why nothing was updated
  double gradient_norm = 0;  ///< over all ranks, unscaled
  double clip_factor = 1;    ///< what the gradients were multiplied by
  std::uint64_t step = 0;    ///< the step that the state stands at now
  /// How long step(), when last called, waited for gradients that were still being reduced: what backward did
  /// not hide of it.
  std::chrono::nanoseconds gradient_wait{0};
};

/// The ZeRO-3 loop of one rank: gathers units before they are used, reduces their gradients, updates the
/// shards where they live.
///
///     engine.begin_step({.micro_batches = 1}).value();
///     auto weights = engine.acquire(unit, stream).value();        // enqueue the forward on `stream`
///     weights.end();                                              // …
///     auto gradients = engine.gradients(unit, stream).value();    // enqueue the backward, which writes slots()
///     engine.reduce(std::move(gradients), stream).value();
///     StepOutcome outcome = engine.step().value();                // once every unit was reduced
///
/// initialize, acquire, gradients, reduce, begin_step, step, digest are collective: every rank calls them in
/// the same order. They are called from one thread, the trainer's, with one compute stream. All but
/// begin_step and reduce block. The device budget is planned for one UnitLease at a time.
///
/// After an error, status() says what can be done:
///
/// | status          | what changed                                          | what to call                            |
/// |-----------------|-------------------------------------------------------|-----------------------------------------|
/// | ready           | nothing; after initialize(), no parameter has a value | the same call again, or the right one   |
/// | step_incomplete | some tiles are updated, and keep the step they are at | step() until it succeeds, nothing else  |
/// | failed          | unknown; the peers are told the cause                 | nothing: destroy the engine             |
///
/// An error that leaves the engine ready is this rank's alone, such as misuse or a write-behind that failed, whose
/// bytes stay in memory. Its peers wait in the collective call that this rank makes again.
///
/// A destroyed engine has left the group: its communicator serves no other engine.
class Engine {
 public:
  struct Options {
    swap::Runtime* runtime = nullptr;  ///< this rank's; outlives the engine
    tiers::Device* device = nullptr;
    Compute* compute = nullptr;            ///< of that device
    Communicator* communicator = nullptr;  ///< of the data-parallel group
    parallel::Workers* workers = nullptr;  ///< run the updates
    Config config;
    ModelLayout model;
    MemoryPlan plan;                  ///< of plan_memory(), from which the runtime was made
    std::uint32_t engine_number = 0;  ///< of several engines on one runtime: the owner in their tensors' keys
  };

  /// Takes the room for everything where the plan has it live.
  ///
  /// Errors: invalid_config, of the configuration; invalid_argument, of the layout; budget_too_small, of the device; no_space, when the swap files
  /// are too small.
  [[nodiscard]] static Result<std::unique_ptr<Engine>> create(Options options);
  /// Waits for what is in flight. The streams given to it have passed whatever uses what it handed out.
  ~Engine();

  /// Writes initial values [first, first + values.size()) of `parameter`, zeros given. Called for this rank's
  /// shard only, piece by piece.
  using Fill = std::function<void(ParameterId parameter, std::uint64_t first, std::span<float> values)>;
  /// Sets every parameter's initial value and clears the moments; step 0. No full model is in memory, ever.
  Result<void> initialize(const Fill& fill);

  struct StepOptions {
    std::uint32_t micro_batches = 1;
    std::optional<float> learning_rate;  ///< of this step; default: the configuration's
  };
  /// A step begins. Errors: invalid_argument, for no micro-batches; failed_state, in the middle of a step.
  Result<void> begin_step(const StepOptions& options);
  /// The unit's gathered parameters; what is enqueued on `stream` from now on may read them.
  [[nodiscard]] Result<UnitLease> acquire(std::uint32_t unit, tiers::Stream& stream);
  /// Room for the unit's full gradient; what is enqueued on `stream` from now on may write it.
  [[nodiscard]] Result<UnitGradients> gradients(std::uint32_t unit, tiers::Stream& stream);
  /// The gradients are written once `stream` has passed this point: averages them over ranks and adds this
  /// rank's shard to the micro-batches before. Does not wait for it.
  Result<void> reduce(UnitGradients gradients, tiers::Stream& stream);
  /// Clips, and updates every parameter of this rank's shards; or skips, with the reason.
  [[nodiscard]] Result<StepOutcome> step();

  /// XXH3-128 of all master weights, over all ranks, in hexadecimal: the same for equal bits, wherever they
  /// live.
  [[nodiscard]] Result<std::string> digest();

  enum class Status : std::uint8_t { ready, step_incomplete, failed };
  [[nodiscard]] Status status() const;
  [[nodiscard]] std::uint64_t current_step() const;
  [[nodiscard]] const ShardLayout& shards() const;
  /// What was asked for and could not be had, in one line; empty when nothing was.
  [[nodiscard]] const std::string& notes() const;

 private:
  friend class UnitLease;
  class State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::zero
