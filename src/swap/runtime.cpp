#include <penstock/swap/runtime.hpp>

#include "swap/path/open_paths.hpp"
#include "swap/policy/find_uses.hpp"
#include "swap/runtime_internals.hpp"
#include "swap/runtime_limit.hpp"
#include "swap/runtime_park.hpp"
#include "swap/runtime_state.hpp"
#include "tiers/store/tensor_slot.hpp"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace penstock::swap {

using tiers::TensorId;

Result<std::unique_ptr<Runtime>> Runtime::create(RuntimeOptions options) {
  if (options.pinning > tiers::Pinning::required) {
    return Error::invalid_argument("Runtime::create")
        .object("pinning")
        .wanted("an enumerator")
        .got(unsigned(options.pinning));
  }
  if (options.eviction > Eviction::reuse_distance) {
    return Error::invalid_argument("Runtime::create")
        .object("eviction")
        .wanted("an enumerator")
        .got(unsigned(options.eviction));
  }
  auto paths = open_paths(options);
  if (!paths) return paths.error();
  auto arena = tiers::HostArena::create(
      {.size = options.host_budget, .pinning = options.pinning, .nodes = options.memory_nodes});
  if (!arena) return arena.error();
  std::unique_ptr<Timeline> timeline;
  if (!options.timeline_file.empty()) {
    PENSTOCK_TRY_ASSIGN(timeline, Timeline::create(options.timeline_file, options.timeline_process));
  }
  std::unique_ptr<Runtime> runtime(new Runtime(std::make_shared<RuntimeState>(
      std::move(options), std::move(*arena), std::move(*paths), std::move(timeline))));
  PENSTOCK_TRY(runtime->state_->pin_earlier_extents());
  PENSTOCK_TRY(runtime->state_->start_threads());
  return runtime;
}

Runtime::Runtime(std::shared_ptr<RuntimeState> state) : state_(std::move(state)) {}

Runtime::~Runtime() {
  {
    std::unique_lock lock(state_->mutex);
    state_->residency.stop();
    state_->closing = true;
    state_->waiters.notify();
    state_->waiters.wait(lock, [this] { return state_->waiting == 0; });
  }
  // Ignores failed stores: a caller that needs their errors calls flush() before.
  RuntimeInternals(*this).wait_ignoring_stores([this] { return state_->transfers.active() == 0; });
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake();
  if (state_->mover.joinable()) state_->mover.join();
  bool released = true;
  for (const auto& path : state_->paths) released &= path->stop_driver();
  if (!released) state_->arena.leak();
  state_->timeline.reset();
  state_->paths.clear();  // leases may outlive the runtime, but not the file systems and clocks of its paths
}

Result<TensorId> Runtime::add(tiers::TensorDescription description, bool on_disk) {
  return add_as(Caller::user, std::move(description), on_disk);
}

Result<TensorId> Runtime::add_as(Caller caller, tiers::TensorDescription description, bool on_disk) {
  RuntimeState& s = *state_;
  const std::lock_guard lock(s.mutex);
  const std::string name = description.name;
  if (description.extent) {
    return Error::invalid_argument("Runtime::add")
        .object(name)
        .reason("TensorDescription::extent is set")
        .wanted("none: the runtime allocates it")
        .got(description.extent->length);
  }
  if (!description.stored_from_outside && description.size > s.budget.size())
    return s.budget.too_small(description.size).object(name);
  if (on_disk && !description.size.is_zero()) {
    auto extent = s.extents.allocate(description.size);
    if (!extent) return std::move(extent).error().object(name);
    description.extent = *extent;
  }
  const auto extent = description.extent;
  const auto tensor = s.store.add(std::move(description));
  if (!tensor) {
    if (extent) s.extents.release(*extent);
    return tensor.error();
  }
  if (auto added = s.residency.add(*tensor); !added) {
    (void)s.store.remove(*tensor);
    constexpr const char* first =
        "raise the budget, or add what stays in memory before other tensors are used: copies that are not "
        "stored yet do not leave for it";
    const bool lacks_room = added.error().code() == ErrorCode::budget_too_small;
    return lacks_room ? std::move(added).error().advice(first) : std::move(added).error();
  }
  const std::size_t slot = tiers::slot_of(*tensor);
  s.is_of_engine.resize(std::max(s.is_of_engine.size(), slot + 1));
  s.is_of_engine[slot] = caller == Caller::engine;
  return *tensor;
}

Result<void> Runtime::remove(TensorId tensor) {
  return remove_as(Caller::user, tensor);
}

Result<void> Runtime::remove_as(Caller caller, TensorId tensor) {
  RuntimeState& s = *state_;
  std::unique_lock lock(s.mutex);
  PENSTOCK_TRY(s.check_unused("Runtime::remove", caller, tensor));
  s.in_removal.push_back(tensor);
  s.residency.forget(tensor);  // cancels a prefetch, which could start during the wait
  const auto is_idle = [&] { return s.residency.idle(tensor); };
  // A move may start before this thread has the lock again.
  while (!is_idle()) s.drive_until(lock, is_idle, StallCause::other);
  s.residency.forget(tensor);  // again: a store may have failed or been queued during the wait
  (void)s.residency.remove(tensor);
  std::erase(s.in_removal, tensor);
  s.advance();  // grants requests that waited for the memory of `tensor` or for its store error to be cleared
  s.wake(std::move(lock));
  return ok();
}

void Runtime::end_round() {
  const std::lock_guard lock(state_->mutex);
  state_->residency.end_round();
}

void Runtime::begin_trace() {
  const std::lock_guard lock(state_->mutex);
  state_->residency.begin_trace();
}

Result<AccessTrace> Runtime::end_trace(std::string label) {
  PENSTOCK_TRY(check_trace({.label = label}));  // before what was recorded is taken
  std::optional<AccessTrace> trace;
  {
    const std::lock_guard lock(state_->mutex);
    trace = state_->residency.end_trace();
  }
  if (!trace) {
    return Error(ErrorCode::failed_state, "Runtime::end_trace")
        .reason("no trace is being recorded")
        .advice("call begin_trace() before the round");
  }
  trace->label = std::move(label);
  return *std::move(trace);
}

Result<void> Runtime::predict(const AccessTrace& trace) {
  PENSTOCK_TRY(check_trace(trace));
  std::unique_lock lock(state_->mutex);
  PENSTOCK_TRY_ASSIGN(auto order, find_uses(trace, state_->store));
  state_->residency.predict(std::move(order));
  state_->advance();
  state_->wake(std::move(lock));
  return ok();
}

Result<void> Runtime::prefetch(TensorId tensor) {
  return state_->prefetch("Runtime::prefetch", tensor, Hint::soon);
}

Result<void> Runtime::discard(TensorId tensor) {
  return discard_as(Caller::user, tensor);
}

Result<void> Runtime::discard_as(Caller caller, TensorId tensor) {
  std::unique_lock lock(state_->mutex);
  PENSTOCK_TRY(state_->check_unused("Runtime::discard", caller, tensor));
  state_->residency.discard(tensor);
  state_->advance();
  state_->wake(std::move(lock));
  return ok();
}

void Runtime::wait_for_stores(std::size_t count) {
  RuntimeInternals(*this).wait_ignoring_stores([&] { return state_->residency.stores_pending() <= count; },
                                               StallCause::stores);
}

Result<void> Runtime::flush() {
  std::vector<TensorId> homes;
  state_->change([&] { homes = state_->residency.changed_homes(); });
  const RuntimeInternals internals(*this);
  internals.begin_stores(homes);
  auto stored = internals.end_stores(homes);
  if (state_->timeline) state_->timeline->flush(std::chrono::seconds(0));
  return stored;
}

Result<void> Runtime::pin_extent(TensorId tensor, std::uint64_t generation) {
  const std::lock_guard lock(state_->mutex);
  PENSTOCK_TRY(state_->check_usable("Runtime::pin_extent", Caller::user, tensor));
  if (generation >= engine_generations) {
    return Error::invalid_argument("Runtime::pin_extent")
        .object("generation")
        .wanted("less than 2^63: the others are those of engines")
        .got(generation);
  }
  return state_->residency.pin_extent(tensor, generation);
}

void Runtime::release_generation(std::uint64_t generation) {
  if (generation < engine_generations) RuntimeInternals(*this).release_generation(generation);
}

Result<void> Runtime::sync() {
  PENSTOCK_TRY(flush());
  const auto paths = [this] {
    const std::lock_guard lock(state_->mutex);
    return state_->residency.paths_with_contents();
  };
  return RuntimeInternals(*this).sync_files(paths());
}

std::vector<std::string> Runtime::take_messages() {
  const std::lock_guard lock(state_->mutex);
  std::vector<std::string> messages = state_->residency.take_messages();
  std::move(state_->messages.begin(), state_->messages.end(), std::back_inserter(messages));
  state_->messages.clear();
  for (const auto& path : state_->paths) {
    if (std::string message = path->take_message(); !message.empty()) messages.push_back(std::move(message));
  }
  if (state_->timeline == nullptr) return messages;
  if (std::string message = state_->timeline->take_message(); !message.empty()) messages.push_back(message);
  return messages;
}

Result<void> Runtime::check_stores() {
  std::unique_lock lock(state_->mutex);
  return state_->report_store_error(std::move(lock), state_->residency.take_store_error());
}

bool Runtime::poll() {
  return state_->poll();
}

std::vector<TensorId> Runtime::tensors() const {
  const std::lock_guard lock(state_->mutex);
  return state_->store.tensors();
}

tiers::TensorDescription Runtime::describe(TensorId tensor) const {
  const std::lock_guard lock(state_->mutex);
  return state_->store.contains(tensor) ? state_->store.description(tensor) : tiers::TensorDescription{};
}

std::string Runtime::name(TensorId tensor) const {
  return describe(tensor).name;
}

bool Runtime::in_memory(TensorId tensor) const {
  const std::lock_guard lock(state_->mutex);
  return state_->store.contains(tensor) && state_->store.copy(tensor).state != tiers::CopyState::absent;
}

std::vector<TensorId> Runtime::tensors_on_path(std::uint32_t path) const {
  const std::lock_guard lock(state_->mutex);
  return state_->store.in_extents_of(path);
}

ByteCount Runtime::host_free() const {
  return state_->budget.free();
}
HostSpan Runtime::host_memory() const {
  return state_->arena.bytes();
}
tiers::Ledger& Runtime::ledger() {
  return state_->ledger;
}
TimePoint Runtime::stall_time() const {
  TimePoint sum{};
  for (std::size_t cause = 0; cause < stall_cause_count; ++cause) sum += stall_time(StallCause(cause));
  return sum;
}
TimePoint Runtime::stall_time(StallCause cause) const {
  const auto number = static_cast<std::size_t>(cause);
  return TimePoint(number < stall_cause_count ? state_->stall_ns[number].load() : 0);
}

std::vector<PathReport> Runtime::paths() const {
  return state_->path_reports();
}

TimePoint Runtime::next_deadline() const {
  TimePoint next = forever;
  for (const auto& path : state_->paths) next = std::min(next, path->next_deadline());
  return next;
}

std::vector<std::string> Runtime::notes() const {
  const std::lock_guard lock(state_->memory_mutex);  // those of the arena change with its pages
  std::vector<std::string> notes = {state_->arena.notes()};
  for (const auto& path : state_->paths) notes.push_back(path->notes());
  std::erase(notes, "");
  return notes;
}

}  // namespace penstock::swap
