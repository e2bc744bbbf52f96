#include <penstock/zero/rank.hpp>

#include "zero/launch/run_description.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <algorithm>
#include <optional>
#include <thread>

namespace penstock::zero {

namespace {

/// A configuration of a file has the batch size of all ranks; one that is made in code may leave it at its default.
Result<void> check_batch_size(const Config& config, std::uint32_t ranks) {
  const std::uint64_t product =
      std::uint64_t{config.micro_batch_size} * config.gradient_accumulation_steps * ranks;
  if (config.train_batch_size == product || config.train_batch_size == 1) return ok();
  return Error::invalid_config("Rank::create")
      .object("train_batch_size")
      .wanted(std::to_string(product) + " = train_micro_batch_size_per_gpu " +
              std::to_string(config.micro_batch_size) + " x gradient_accumulation_steps " +
              std::to_string(config.gradient_accumulation_steps) + " x " + std::to_string(ranks) + " ranks")
      .got(config.train_batch_size)
      .advice("read the file with Config::from_file(path, " + std::to_string(ranks) + ")");
}

}  // namespace

/// Members are in the order of creation, so that each part is destroyed before the parts that it uses.
struct Rank::State {
  explicit State(Options given) : options(std::move(given)) {}
  Result<void> open();
  Result<void> make_accelerator();
  Result<void> make_workers();
  Result<void> make_runtime();
  Result<void> join();
  /// The collectives of the peers fail with `cause`. Before the communicator is destroyed, which would be the cause.
  void leave(const Error& cause);

  const Options options;
  MemoryPlan plan;
  std::optional<parallel::Workers> own_workers;  // run the runtime's checksums too
  parallel::Workers* workers = nullptr;
  std::unique_ptr<swap::Runtime> runtime;
  Accelerator accelerator;
  std::unique_ptr<Communicator> communicator;
  std::unique_ptr<Engine> engine;
};

Result<std::unique_ptr<Rank>> Rank::create(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  if (auto opened = state->open(); !opened) {
    state->leave(opened.error());
    return opened.error();
  }
  return std::unique_ptr<Rank>(new Rank(std::move(state)));
}

Result<void> Rank::State::open() {
  const RankIdentity& identity = options.identity;
  PENSTOCK_TRY(identity.validate());
  PENSTOCK_TRY(check_batch_size(options.config, identity.ranks));
  if (options.group.agree) PENSTOCK_TRY(options.group.agree(describe_run(options.config, options.model)));
  PENSTOCK_TRY(make_accelerator());
  PENSTOCK_TRY(make_workers());
  PENSTOCK_TRY(make_runtime());
  PENSTOCK_TRY(join());
  Engine::Options engine_options{.runtime = runtime.get(),
                                 .device = accelerator.device.get(),
                                 .compute = accelerator.compute.get(),
                                 .adam = accelerator.adam.get(),
                                 .communicator = communicator.get(),
                                 .workers = workers,
                                 .config = options.config,
                                 .model = options.model,
                                 .plan = plan,
                                 .update = options.update,
                                 .engine_number = options.engine_number,
                                 .device_deadline = options.device_deadline};
  if (options.hooks.engine_options) options.hooks.engine_options(engine_options);
  PENSTOCK_TRY_ASSIGN(engine, Engine::create(std::move(engine_options)));
  return ok();
}

Result<void> Rank::State::make_accelerator() {
  const auto plan_for = [this](tiers::DeviceMemory memory) {
    return plan_memory(options.config, options.model, options.identity.ranks, options.identity.local_ranks,
                       memory);
  };
  if (!options.make_accelerator) {
    PENSTOCK_TRY_ASSIGN(plan, plan_for(tiers::DeviceMemory::host));
    accelerator = make_host_accelerator(plan.device_budget);
    return ok();
  }
  // Only its device tells where its memory is; one of its own needs more.
  auto planned = plan_for(tiers::DeviceMemory::separate);
  if (!planned) {
    auto on_host = plan_for(tiers::DeviceMemory::host);
    if (!on_host) return planned.error();
    planned = std::move(on_host);
  }
  PENSTOCK_TRY_ASSIGN(accelerator, options.make_accelerator(planned->device_budget));
  if (!accelerator.device || !accelerator.compute) {
    return Error::invalid_argument("Rank::create")
        .object("make_accelerator")
        .reason("it returned no device or compute");
  }
  PENSTOCK_TRY_ASSIGN(plan, plan_for(accelerator.device->memory()));
  return ok();
}

Result<void> Rank::State::make_workers() {
  workers = options.workers;
  if (workers != nullptr) return ok();
  const std::uint32_t share =
      std::max(1u, std::thread::hardware_concurrency() / options.identity.local_ranks);
  const std::uint32_t threads = options.config.penstock.threads;
  PENSTOCK_TRY_ASSIGN(own_workers, parallel::Workers::create({.threads = threads == 0 ? share : threads}));
  workers = &*own_workers;
  return ok();
}

Result<void> Rank::State::make_runtime() {
  swap::RuntimeOptions runtime_options = plan.runtime_options(options.config, options.identity.local_rank);
  runtime_options.executor = workers;
  if (options.hooks.runtime_options) options.hooks.runtime_options(runtime_options);
  PENSTOCK_TRY_ASSIGN(runtime, swap::Runtime::create(std::move(runtime_options)));
  return ok();
}

Result<void> Rank::State::join() {
  const RankIdentity& identity = options.identity;
  if (!options.group.join && identity.ranks > 1) {
    return Error::invalid_argument("Rank::create")
        .object("group")
        .reason("a run with several ranks needs a group")
        .wanted("a membership for " + std::to_string(identity.ranks) + " ranks")
        .advice(
            "in_process_membership() creates one for ranks that are threads of one process, "
            "process_membership() for processes");
  }
  const GroupMembership membership =
      options.group.join ? options.group : in_process_membership(InProcessGroup::create(1).value(), 0);
  PENSTOCK_TRY_ASSIGN(
      communicator, membership.join(*accelerator.device, *accelerator.compute,
                                    {.exact_slots_max = plan.exact_slots_max, .arena = plan.device_arena()}));
  if (communicator == nullptr) {
    return Error::invalid_argument("Rank::create").object("group.join").reason("it returned no communicator");
  }
  if (communicator->rank() != identity.rank || communicator->size() != identity.ranks) {
    return Error::invalid_argument("Rank::create")
        .object("group")
        .reason("the communicator belongs to another rank")
        .wanted("rank " + std::to_string(identity.rank) + " of " + std::to_string(identity.ranks))
        .got("rank " + std::to_string(communicator->rank()) + " of " + std::to_string(communicator->size()));
  }
  return ok();
}

void Rank::State::leave(const Error& cause) {
  if (communicator != nullptr) {
    communicator->abort(cause);
  } else if (options.group.abandon) {
    options.group.abandon(cause);
  }
}

Rank::Rank(std::unique_ptr<State> state) : state_(std::move(state)) {}
Rank::~Rank() {
  state_->engine.reset();
  if (state_->options.hooks.engine_destroyed) state_->options.hooks.engine_destroyed(*state_->runtime);
}

Engine& Rank::engine() {
  return *state_->engine;
}
swap::Runtime& Rank::runtime() {
  return *state_->runtime;
}
tiers::Device& Rank::device() {
  return *state_->accelerator.device;
}
Compute& Rank::compute() {
  return *state_->accelerator.compute;
}
parallel::Workers& Rank::workers() {
  return *state_->workers;
}
const Config& Rank::config() const {
  return state_->options.config;
}
const ModelLayout& Rank::model() const {
  return state_->options.model;
}
const MemoryPlan& Rank::plan() const {
  return state_->plan;
}
const RankIdentity& Rank::identity() const {
  return state_->options.identity;
}

std::vector<std::string> Rank::notes() const {
  std::vector<std::string> notes = state_->runtime->notes();
  if (const std::string& of_engine = state_->engine->notes(); !of_engine.empty()) notes.push_back(of_engine);
  return notes;
}

}  // namespace penstock::zero
