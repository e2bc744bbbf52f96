#pragma once

#include <penstock/base/compute.hpp>
#include <penstock/parallel/workers.hpp>
#include <penstock/swap/runtime.hpp>
#include <penstock/tiers/device/device.hpp>
#include <penstock/zero/comm/communicator.hpp>
#include <penstock/zero/config/config.hpp>
#include <penstock/zero/engine/engine.hpp>
#include <penstock/zero/layout/memory_plan.hpp>
#include <penstock/zero/layout/model_layout.hpp>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace penstock::zero {

/// Which rank of the data-parallel group this is, and which of those on its machine.
struct RankIdentity {
  std::uint32_t rank = 0, ranks = 1;
  std::uint32_t local_rank = 0, local_ranks = 1;  ///< they share the machine's host budget and its disks

  /// All ranks are on this machine, such as threads of one process.
  [[nodiscard]] static RankIdentity local(std::uint32_t rank, std::uint32_t ranks) {
    return {.rank = rank, .ranks = ranks, .local_rank = rank, .local_ranks = ranks};
  }
  /// Errors: invalid_argument: a count of zero, or a rank that is not below its count.
  [[nodiscard]] Result<void> validate() const;
};

/// The accelerator of one rank: its memory and streams, and the elementwise operations on it.
struct Accelerator {
  std::unique_ptr<tiers::Device> device;
  std::unique_ptr<Compute> compute;
};
/// Host memory as the accelerator, of `memory` bytes.
[[nodiscard]] Accelerator make_host_accelerator(ByteCount memory);
/// CUDA device number `ordinal`. Errors: unsupported, where this build has no CUDA or the machine no such device.
[[nodiscard]] Result<Accelerator> make_cuda_accelerator(int ordinal);

/// For tests: what a rank is made of, changed on the way. Each may be empty.
struct RankHooks {
  /// Has the last word on the runtime: file systems, engines and faults of its paths, an idle handler.
  std::function<void(swap::RuntimeOptions&)> runtime_options;
  std::function<void(Engine::Options&)> engine_options;
  /// The engine is destroyed, and its runtime not yet.
  std::function<void(swap::Runtime&)> engine_destroyed;
};

/// One rank of a training run: what a trainer embeds. Plans the memory; creates workers, runtime, accelerator,
/// communicator and engine, each from the plan; and destroys them in the right order.
///
///     auto config = zero::Config::from_file("ds_config.json", /*world_size=*/1).value();
///     auto rank = zero::Rank::create({.config = config, .model = layout}).value();
///     zero::Engine& engine = rank->engine();
///     engine.initialize(fill).value();
///     auto stream = rank->device().create_stream().value();
///     for each step: engine.begin_step(…); for each unit: engine.acquire(unit, *stream) …; engine.step();
///
/// The parts can be made by hand too: plan_memory(), swap::Runtime, Engine.
///
/// Used by the trainer's thread. create() and the destructor block. What the trainer made on device(), its streams
/// among it, is destroyed before the rank, and has passed whatever uses what the engine handed out.
class Rank {
 public:
  struct Options {
    Config config;
    ModelLayout model;
    RankIdentity identity;
    /// Makes the accelerator, of which the engine takes `engine_budget` bytes; the trainer's own memory comes on top.
    /// Empty: host memory of `engine_budget`.
    std::function<Result<Accelerator>(ByteCount engine_budget)> make_accelerator;
    /// Empty: a group of one rank, which is an error for identity.ranks > 1. See in_process_membership().
    GroupMembership group;
    /// Runs updates and checksums; outlives the rank. Null: workers of its own, penstock.threads of them, or the cores
    /// divided by the ranks of this machine.
    parallel::Workers* workers = nullptr;
    RankHooks hooks;
    std::uint32_t engine_number = 0;  ///< see Engine::Options
  };

  /// Peers are told when it fails.
  ///
  /// Errors: invalid_config and invalid_argument, naming the key or argument; budget_too_small and no_space, with
  /// what is needed; those of the device, the group and the swap directories.
  [[nodiscard]] static Result<std::unique_ptr<Rank>> create(Options options);
  ~Rank();

  [[nodiscard]] Engine& engine();
  [[nodiscard]] swap::Runtime& runtime();
  [[nodiscard]] tiers::Device& device();
  [[nodiscard]] Compute& compute();
  [[nodiscard]] parallel::Workers& workers();
  [[nodiscard]] const Config& config() const;
  [[nodiscard]] const ModelLayout& model() const;
  [[nodiscard]] const MemoryPlan& plan() const;
  [[nodiscard]] const RankIdentity& identity() const;
  /// What was asked for and could not be had, a line each.
  [[nodiscard]] std::vector<std::string> notes() const;

 private:
  struct State;
  explicit Rank(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock::zero
