#include <penstock/zero/rank.hpp>

#include "base/notes.hpp"
#include "swap/runtime_internals.hpp"
#include "zero/commit/durable_directories.hpp"
#include "zero/engine/engine_commits.hpp"
#include "zero/idle_memory.hpp"
#include "zero/launch/run_description.hpp"
#include "zero/layout/path_options.hpp"
#include "zero/memory_follower.hpp"
#include "zero/report/helpful_changes.hpp"
#include "zero/report/report_file.hpp"
#include "zero/report/step_means.hpp"
#include "zero/report/step_monitor.hpp"

#include <penstock/zero/comm/in_process_group.hpp>

#include <algorithm>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

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
  explicit State(Options given);
  Result<void> open();
  Result<void> make_plans(tiers::DeviceMemory memory);
  [[nodiscard]] ByteCount device_budget() const;
  Result<void> make_accelerator();
  Result<void> make_workers();
  Result<void> make_runtime();
  Result<void> judge_directories();
  Result<void> use_directories(swap::RuntimeOptions& of_runtime);
  /// One engine with what it does not share.
  struct Member {
    const Config& config;
    const ModelLayout& model;
    const GroupMembership& group;
    const UpdateFunction& update;
    MemoryPlan plan = {};
    std::unique_ptr<Communicator> communicator = nullptr;
    std::unique_ptr<Engine> engine = nullptr;
  };
  Result<void> join(Member& member);
  Result<void> make_engine(Member& member);
  /// Its name on this rank, in the working directory of now. Empty for an empty one.
  [[nodiscard]] Result<std::filesystem::path> file_of_rank(std::filesystem::path file) const;
  Result<void> judge_files();
  void end_step(const StepOutcome& outcome);
  [[nodiscard]] RunReport report(bool with_changes) const;
  Result<void> save_report(bool with_changes);
  /// The collectives of the peers fail with `cause`. Before the communicators are destroyed, which would be the cause.
  void leave(const Error& cause);

  const Options options;
  std::optional<parallel::Workers> own_workers;  // run the runtime's checksums too
  parallel::Workers* workers = nullptr;
  std::unique_ptr<RankDirectory> directory;                  // null if the run is not durable
  std::map<std::uint32_t, std::vector<Manifest>> committed;  // there, by engine
  std::unique_ptr<swap::Runtime> runtime;
  Accelerator accelerator;
  std::vector<Member> members;  // the rank's own engine is the first
  std::vector<Engine*> engines;
  std::vector<const MemoryPlan*> plans;
  const TimePoint created_at = Clock::steady().now();
  std::optional<StepMonitor> monitor;
  std::filesystem::path report_file, timeline_file;  // empty: none
  TimePoint reported_at{};
  std::string report_note;  // why it is not written
  std::string idle_memory_note;
  StepMeans step_means;
  std::optional<MemoryFollower> follower;  // none: it does not look
};

Rank::State::State(Options given) : options(std::move(given)) {
  members.push_back({options.config, options.model, options.group, options.update});
  for (const EngineBeside& beside : options.beside)
    members.push_back({beside.config, beside.model, beside.group, beside.update});
}

Result<std::unique_ptr<Rank>> Rank::create(Options options) {
  auto state = std::make_unique<State>(std::move(options));
  try {
    if (auto opened = state->open(); !opened) {
      state->leave(opened.error());
      return opened.error();
    }
  } catch (...) {  // of a function that the caller has passed; the peers wait for this rank
    state->leave(Error(ErrorCode::failed_state, "Rank::create")
                     .reason("a function that was passed threw an exception"));
    throw;
  }
  return std::unique_ptr<Rank>(new Rank(std::move(state)));
}

Result<void> Rank::State::open() {
  const RankIdentity& identity = options.identity;
  PENSTOCK_TRY(identity.validate());
  for (const Member& member : members) {
    PENSTOCK_TRY(check_batch_size(member.config, identity.ranks));
  }
  PENSTOCK_TRY(judge_directories());  // before a peer makes anything in its own
  PENSTOCK_TRY(judge_files());
  for (const Member& member : members) {
    if (member.group.agree) PENSTOCK_TRY(member.group.agree(describe_run(member.config, member.model)));
  }
  PENSTOCK_TRY(make_accelerator());
  PENSTOCK_TRY(make_workers());
  PENSTOCK_TRY(make_runtime());
  for (Member& member : members) PENSTOCK_TRY(join(member));
  for (Member& member : members) PENSTOCK_TRY(make_engine(member));
  PENSTOCK_TRY_ASSIGN(monitor, StepMonitor::create(options.config, options.identity.rank == 0, options.log));
  return report_file.empty() ? ok() : save_report(/*with_changes=*/false);  // a wrong name is told at once
}

Result<std::filesystem::path> Rank::State::file_of_rank(std::filesystem::path file) const {
  if (file.empty()) return file;
  std::error_code error;
  file = std::filesystem::absolute(file, error);
  if (error) return Error::from_errno("Rank::create", error.value()).object(file.string());
  return name_of_rank(std::move(file), options.identity.rank, options.identity.ranks);
}

namespace {

Result<void> of_report_file(Result<void> outcome) {
  if (outcome) return outcome;
  return std::move(outcome).error().note("it is penstock.report_file");
}

}  // namespace

/// Those that the run is to write. Makes nothing.
Result<void> Rank::State::judge_files() {
  PENSTOCK_TRY(StepMonitor::check(options.config, options.identity.rank == 0));
  const PenstockConfig& penstock = options.config.penstock;
  PENSTOCK_TRY_ASSIGN(report_file, file_of_rank(penstock.report_file));
  PENSTOCK_TRY_ASSIGN(timeline_file, file_of_rank(penstock.timeline_file));
  if (report_file.empty()) return ok();
  PENSTOCK_TRY(check_different(report_file, timeline_file));
  return of_report_file(check_report_file(report_file));
}

void Rank::State::end_step(const StepOutcome& outcome) {
  constexpr TimePoint interval = std::chrono::seconds(10);
  const Config& config = options.config;
  step_means.end_step(*runtime);
  const std::uint64_t steps = engines.front()->completed_steps() + engines.front()->skipped_steps();
  const std::uint64_t samples =
      steps * config.micro_batch_size * config.gradient_accumulation_steps * options.identity.ranks;
  monitor->end_step(outcome, samples, [this] { return report(/*with_changes=*/false); });
  if (follower) follower->end_step(*runtime);
  if (report_file.empty() || Clock::steady().now() - reported_at < interval) return;
  const auto saved = save_report(/*with_changes=*/false);  // is tried again after the interval
  report_note = saved ? std::string() : first_line(saved.error()) + "; the report could not be written";
}

RunReport Rank::State::report(bool with_changes) const {
  RunReport report =
      report_of(*runtime, {.rank = options.identity.rank, .elapsed = Clock::steady().now() - created_at});
  const StepTimes times = engines.front()->step_times();
  report.steps = times.steps;
  if (members.size() == 1) step_means.add_to(report);
  if (times.steps > 0)
    report.step = (times.forward + times.backward + times.stepping + times.between) / times.steps;
  if (!with_changes) return report;
  add_changes(report, options.config, options.model, members.front().plan, options.identity, times,
              accelerator.device->memory());
  if (report.predicted_step == TimePoint()) return report;
  if (members.size() > 1) report.changes_note += "; what is simulated is the first engine alone";
  if (swap::RuntimeInternals(*runtime).memory_is_limited())
    report.changes_note += "; what is simulated has all of the host memory, of which others have a part now";
  return report;
}

Result<void> Rank::State::save_report(bool with_changes) {
  reported_at = Clock::steady().now();
  return of_report_file(zero::save_report(report(with_changes), report_file, report_format_of(report_file)));
}

Result<void> Rank::State::make_engine(Member& member) {
  const auto index = static_cast<std::uint32_t>(&member - members.data());
  Engine::Options engine_options{.runtime = runtime.get(),
                                 .device = accelerator.device.get(),
                                 .compute = accelerator.compute.get(),
                                 .adam = accelerator.adam.get(),
                                 .communicator = member.communicator.get(),
                                 .workers = workers,
                                 .config = member.config,
                                 .model = member.model,
                                 .plan = member.plan,
                                 .update = member.update,
                                 .engine_number = options.engine_number + index,
                                 .ends_rounds = index == 0,
                                 .directory = directory.get(),
                                 .device_deadline = options.device_deadline};
  if (index == 0) engine_options.after_step = [this](const StepOutcome& outcome) { end_step(outcome); };
  if (options.hooks.engine_options) options.hooks.engine_options(engine_options);
  PENSTOCK_TRY_ASSIGN(member.engine, Engine::create(std::move(engine_options)));
  engines.push_back(member.engine.get());
  plans.push_back(&member.plan);
  return ok();
}

Result<void> Rank::State::make_plans(tiers::DeviceMemory memory) {
  for (Member& member : members) {
    PENSTOCK_TRY_ASSIGN(member.plan,
                        plan_memory(member.config, member.model, options.identity.ranks,
                                    options.identity.local_ranks, memory, options.identity.local_rank));
  }
  return ok();
}

ByteCount Rank::State::device_budget() const {
  ByteCount budget;
  for (const Member& member : members) budget += member.plan.device_budget;
  return budget;
}

Result<void> Rank::State::make_accelerator() {
  if (!options.make_accelerator) {
    PENSTOCK_TRY(make_plans(tiers::DeviceMemory::host));
    accelerator = make_host_accelerator(device_budget());
    return ok();
  }
  // Only its device tells where its memory is; one of its own needs more.
  if (auto planned = make_plans(tiers::DeviceMemory::separate); !planned) {
    if (!make_plans(tiers::DeviceMemory::host)) return planned;
  }
  PENSTOCK_TRY_ASSIGN(accelerator, options.make_accelerator(device_budget()));
  if (!accelerator.device || !accelerator.compute) {
    return Error::invalid_argument("Rank::create")
        .object("make_accelerator")
        .reason("it returned no device or compute");
  }
  return make_plans(accelerator.device->memory());
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
  std::vector<PlannedEngine> planned;
  for (const Member& member : members) planned.push_back({&member.config, &member.plan});
  PENSTOCK_TRY_ASSIGN(auto runtime_options, shared_runtime_options(planned, options.identity.local_rank));
  runtime_options.executor = workers;
  ByteCount beyond_plans = runtime_options.host_budget;
  for (const Member& member : members) beyond_plans -= member.plan.host_budget;
  runtime_options.timeline_file = timeline_file;
  runtime_options.timeline_process = options.identity.rank;
  if (options.hooks.runtime_options) options.hooks.runtime_options(runtime_options);
  if (directory) PENSTOCK_TRY(use_directories(runtime_options));
  PENSTOCK_TRY_ASSIGN(runtime, swap::Runtime::create(std::move(runtime_options)));
  if (const ByteCount reserve = options.config.penstock.memory_reserve; !reserve.is_zero())
    follower.emplace(reserve, options.identity.local_ranks, options.hooks.memory_limit);
  runtime->ledger().predict(tiers::Tier::host, tiers::Purpose::staging, beyond_plans);
  if (members.size() == 1) {
    const auto& look = options.hooks.memory_limit;
    idle_memory_note =
        note_of_idle_memory(options.config, options.model, members.front().plan, options.identity,
                            accelerator.device->memory(), look ? look() : tiers::memory_limit());
  }
  return ok();
}

/// Locks the durable directories that are there, and reads what commits refer to in them. Makes nothing.
Result<void> Rank::State::judge_directories() {
  const std::vector<std::filesystem::path>& directories = options.config.penstock.durable_directories;
  for (const EngineBeside& beside : options.beside) {
    if (beside.config.penstock.durable_directories == directories) continue;
    return Error::invalid_config("Rank::create")
        .object("penstock.durable_directory")
        .reason("engines of one rank share its files, and their configurations name different directories");
  }
  if (directories.empty()) return ok();
  swap::PathOptions copies = path_options(options.config, {}, directories.size() == 1 ? 1 : 0);
  if (options.hooks.durable_files) options.hooks.durable_files(copies);
  RankDirectory::Options judged{
      .files = copies.file_system,
      .copies = copies,
      .directories = directories,
      .rank = options.identity.rank,
      .deadline = std::chrono::seconds(options.config.penstock.io_deadline_seconds)};
  PENSTOCK_TRY_ASSIGN(judged.directories, absolute_names(directories));
  PENSTOCK_TRY(check_directories(judged));
  PENSTOCK_TRY_ASSIGN(judged.directories, manifests_first(judged));
  PENSTOCK_TRY_ASSIGN(directory, RankDirectory::lock(judged));
  PENSTOCK_TRY_ASSIGN(committed, committed_manifests(judged));
  for (std::uint32_t i = 0; i < members.size(); ++i)
    PENSTOCK_TRY(check_commit(judged, options.engine_number + i, options.identity));
  return ok();
}

/// Makes the durable directories, in which the swap files are then, and keeps what commits refer to there.
Result<void> Rank::State::use_directories(swap::RuntimeOptions& of_runtime) {
  PENSTOCK_TRY(directory->make());
  const std::vector<std::filesystem::path>& directories = directory->options().directories;
  for (swap::PathOptions& path : of_runtime.paths) {
    PENSTOCK_TRY_ASSIGN(const auto named, absolute_names({path.directory}));
    const auto found = std::find(directories.begin(), directories.end(), named.front());
    const auto index = static_cast<std::size_t>(found - directories.begin());
    path.directory = directory->path(index);
    path.file_name = directory->swap_name(index);
  }
  // Also of engines that are not in this process.
  for (const auto& [engine, of_engine] : std::exchange(committed, {})) {
    const auto extents = committed_extents(engine, of_engine, of_runtime.paths);
    of_runtime.pinned.insert(of_runtime.pinned.end(), extents.begin(), extents.end());
  }
  return ok();
}

Result<void> Rank::State::join(Member& member) {
  const RankIdentity& identity = options.identity;
  if (!member.group.join && identity.ranks > 1) {
    return Error::invalid_argument("Rank::create")
        .object("group")
        .reason("a run with several ranks needs a group")
        .wanted("a membership for " + std::to_string(identity.ranks) + " ranks")
        .advice(
            "in_process_membership() creates one for ranks that are threads of one process, "
            "process_membership() for processes");
  }
  const GroupMembership membership =
      member.group.join ? member.group : in_process_membership(InProcessGroup::create(1).value(), 0);
  PENSTOCK_TRY_ASSIGN(member.communicator, membership.join(*accelerator.device, *accelerator.compute,
                                                           {.exact_slots_max = member.plan.exact_slots_max,
                                                            .arena = member.plan.device_flats()}));
  const auto& communicator = member.communicator;
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
  for (const Member& member : members) {
    if (member.communicator != nullptr) {
      member.communicator->abort(cause);
    } else if (member.group.abandon) {
      member.group.abandon(cause);
    }
  }
}

Rank::Rank(std::unique_ptr<State> state) : state_(std::move(state)) {}
Rank::~Rank() {
  if (!state_->report_file.empty()) {
    (void)engine().finish_update();  // its bytes count
    runtime().wait_for_stores(0);
    if (const auto saved = state_->save_report(/*with_changes=*/true); !saved)
      state_->monitor->log(first_line(saved.error()) + "; the report at the end could not be written");
  }
  for (auto member = state_->members.rbegin(); member != state_->members.rend(); ++member)
    member->engine.reset();
  if (state_->options.hooks.engine_destroyed) state_->options.hooks.engine_destroyed(*state_->runtime);
  if (swap::Timeline* const timeline = swap::RuntimeInternals(runtime()).timeline()) {
    runtime().wait_for_stores(0);  // which are in it
    if (const std::string message = timeline->end(); !message.empty()) state_->monitor->log(message);
  }
}

Engine& Rank::engine() {
  return *state_->engines.front();
}
std::span<Engine* const> Rank::engines() {
  return state_->engines;
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
  return *state_->plans.front();
}
std::span<const MemoryPlan* const> Rank::plans() const {
  return state_->plans;
}
const RankIdentity& Rank::identity() const {
  return state_->options.identity;
}

std::vector<std::string> Rank::notes() const {
  std::vector<std::string> notes = state_->runtime->notes();
  for (const State::Member& member : state_->members) {
    const std::string& of_engine = member.engine->notes();
    if (!of_engine.empty()) notes.push_back(of_engine);
  }
  const std::vector<std::string>& of_monitors = state_->monitor->notes();
  notes.insert(notes.end(), of_monitors.begin(), of_monitors.end());
  for (const std::string& note : {state_->idle_memory_note, state_->report_note})
    if (!note.empty()) notes.push_back(note);
  return notes;
}

RunReport Rank::report(bool with_changes) const {
  return state_->report(with_changes);
}
Result<void> Rank::write_events(std::span<const MonitorEvent> events) {
  return state_->monitor->write(events);
}

}  // namespace penstock::zero
