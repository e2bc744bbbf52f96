#include "zero/engine/engine_context.hpp"

#include "base/abandon.hpp"

#include <algorithm>
#include <utility>

namespace penstock::zero {

using swap::StallCause;

namespace {

/// How many fences exist at a time, so that a step creates no event. A flat has up to eight: of its gather's copy, its
/// last use, its gradient's copy and its range, each for the one before and the next one too. A checkpoint in a slot
/// has up to four.
std::size_t fences_at_a_time(std::size_t flats, std::uint32_t checkpoints) {
  constexpr std::size_t of_tiles_and_waits = 32, checkpoints_max = 256;
  return flats * 8 + std::min<std::size_t>(checkpoints, checkpoints_max) * 4 + of_tiles_and_waits;
}

/// That of the configuration, or the transport's own where it has one.
Result<Reduction> choose_reduction(const Config& config, const Communicator& communicator) {
  if (communicator.size() == 1) return Reduction::exact;  // the mean of one
  const bool has_native = communicator.supports(Reduction::native);
  const Reduction chosen =
      config.penstock.reduction.value_or(has_native ? Reduction::native : Reduction::exact);
  if (chosen == Reduction::exact || has_native) return chosen;
  return Error::unsupported("Engine::create")
      .object("penstock.reduction")
      .reason("the ranks' transport has no arithmetic of its own")
      .wanted("exact")
      .got(std::string(to_string(chosen)))
      .advice("leave the key out, or train on GPUs with one process a rank, whose collectives are NCCL's");
}

}  // namespace

Result<void> EngineContext::open(const DeviceSizes& sizes) {
  PENSTOCK_TRY_ASSIGN(reduction, choose_reduction(config, communicator));
  PENSTOCK_TRY_ASSIGN(copy_in, create_stream("stream of copies to the device"));
  PENSTOCK_TRY_ASSIGN(copy_out, create_stream("stream of copies to host memory"));
  PENSTOCK_TRY_ASSIGN(communication, create_stream("stream of collectives"));
  if (auto arena = communicator.arena(); arena && arena->size() >= sizes.flats) {
    flats_region.adopt(std::move(arena));
  } else {
    PENSTOCK_TRY(flats_region.allocate(sizes.flats));
  }
  PENSTOCK_TRY(parameter_region.allocate(sizes.parameters));
  PENSTOCK_TRY(gradient_region.allocate(sizes.gradients));
  PENSTOCK_TRY(optimizer_region.allocate(sizes.optimizer));
  flats = std::vector<FlatState>(shards.flats().size());
  for (std::size_t f = 0; f < flats.size(); ++f) {
    FlatState& flat = flats[f];
    flat.layout = &shards.flats()[f];
    for (auto* event : {&flat.gathered.gathered, &flat.grad.written_event, &flat.grad.reduced}) {
      PENSTOCK_TRY_ASSIGN(*event, device.create_event());
    }
  }
  communicator.set_wake(wake);
  return events.reserve(fences_at_a_time(flats.size(), model.checkpoints.count));
}

Result<std::unique_ptr<tiers::Stream>> EngineContext::create_stream(const char* track) {
  PENSTOCK_TRY_ASSIGN(auto stream, device.create_stream());
  if (stream == nullptr)
    return Error::invalid_argument("Device::create_stream").reason("it returned no stream");
  if (tracks != nullptr) tracks->name(stream->handle(), track);
  return stream;
}

void EngineContext::release_device_memory() noexcept {
  for (DeviceRegion* const region : regions()) region->release();
}

CollectiveContext EngineContext::collectives() {
  return {.runtime = runtime,
          .device = device,
          .communicator = communicator,
          .order = collective_order,
          .trace = collective_trace,
          .copy_in = *copy_in,
          .communication = *communication,
          .events = events,
          .copied_in = copied_in,
          .tracks = tracks,
          .reduction = reduction};
}

DeviceTensor EngineContext::at(const tiers::Reservation& range, ElementCount count) const {
  return {flats_region.memory().subspan(ByteCount(range.offset()), size_of(config.dtype) * count.value()),
          config.dtype};
}

DeviceTensor EngineContext::on_device(HostSpan bytes, ElementCount count) const {
  const DeviceAddress address{reinterpret_cast<std::uintptr_t>(bytes.data())};
  return {DeviceSpan(address, size_of(config.dtype) * count.value()), config.dtype};
}

HostSpan EngineContext::on_host(DeviceSpan bytes) {
  return {reinterpret_cast<std::byte*>(static_cast<std::uintptr_t>(bytes.address())), bytes.size()};
}

Result<void> EngineContext::fail(const Error& error) {
  if (error.code() == ErrorCode::interrupted) {
    if (!interruption) interruption = error;
    return error;
  }
  const bool is_first = !failure;
  if (is_first) failure = with_lost_work(error);
  communicator.abort(error);
  collective_order.fail(error);
  internals.wake();  // for hops that wait for something else
  return is_first ? *failure : error;
}

/// A device that has failed returns its error from every call: the one that returned it first has not caused it.
Error EngineContext::with_lost_work(Error error) const {
  internals.wait_ignoring_stores([&] {
    for (const auto* progress : {&copied_in, &copied_out, &checkpoints_in}) {
      if (const std::string work = progress->lost_work(); !work.empty())
        error = std::move(error).note("running " + work);
    }
    return true;
  });
  return error;
}

void EngineContext::interrupt(const Error& cause) {
  if (!interruption) interruption = cause;
  communicator.interrupt(cause);
  collective_order.fail(cause);
  internals.wake();
}

Result<void> EngineContext::recover(tiers::Stream& trainer) {
  collective_order.reset();
  collective_trace.restart();
  accumulation_order.reset();
  checkpoint_order.reset();
  PENSTOCK_TRY(run(make_recovery_hop(collectives())));
  PENSTOCK_TRY(finish(trainer, "the trainer's stream"));
  PENSTOCK_TRY(finish_streams());
  interruption.reset();
  return ok();
}

Result<void> EngineContext::wait_for(const tiers::Event& event, const char* work) {
  auto passed = internals.wait_for(event, work, device_deadline);
  if (passed) return ok();
  wait_hangs = wait_hangs || passed.error().code() == ErrorCode::deadline_exceeded;
  return fail(passed.error());
}

Result<void> EngineContext::finish(tiers::Stream& stream, const char* work) {
  const auto fence = events.record(stream);
  if (!fence) return fail(fence.error());
  return wait_for(**fence, work);
}

Result<void> EngineContext::finish_streams() {
  struct Named {
    tiers::Stream* stream;
    const char* work;
  };
  Result<void> all = ok();
  for (const auto& [stream, work] :
       {Named{copy_in.get(), "copies to the device"}, Named{communication.get(), "collectives"},
        Named{checkpoint_in.get(), "copies of checkpoints to the device"},
        Named{update_stream.get(), "updates of tiles"}, Named{copy_out.get(), "copies to host memory"}}) {
    if (stream == nullptr || wait_hangs) continue;
    auto finished = finish(*stream, work);
    if (all && !finished) all = std::move(finished);
  }
  return all;
}

void EngineContext::abandon_device() {
  for (auto* stream : {&copy_in, &communication, &checkpoint_in, &update_stream, &copy_out})
    abandon(std::move(*stream));
  abandon(flats_region.borrowed());
  for (FlatState& flat : flats) {
    abandon(std::move(flat.gathered.in_place));
    abandon(std::move(flat.grad.in_place));
  }
  abandon_results();
}

void EngineContext::abandon_results() {
  abandon(std::move(results));
}

Result<void> EngineContext::fail_unless_retryable(Result<void> stores) {
  if (stores) return stores;
  const ErrorCode code = stores.error().code();
  const bool for_good = code == ErrorCode::deadline_exceeded || code == ErrorCode::failed_state;
  return for_good ? fail(stores.error()) : name_what_keeps_room(std::move(stores));
}

Result<void> EngineContext::name_what_keeps_room(Result<void> stores) const {
  if (stores || !keeps_room) return stores;
  constexpr std::string_view of_swap_files = "ExtentAllocator::allocate";
  if (stores.error().operation() != of_swap_files) return stores;
  return std::move(stores)
      .error()
      .note("cause   the room is kept by " + keeps_room->what)
      .advice(keeps_room->advice);
}

Result<void> EngineContext::check_update() {
  std::optional<Error> stopped;
  internals.wait_ignoring_stores([&] {
    if (update.done) stopped = std::exchange(update.error, std::nullopt);
    return true;
  });
  if (!stopped) return ok();
  update_stopped = true;
  return update_ended ? fail(*stopped) : fail_unless_retryable(*stopped);
}

Result<void> EngineContext::wait_beside_update(const std::function<bool()>& done, StallCause cause) {
  bool is_done = false;
  PENSTOCK_TRY(fail_unless_retryable(
      internals.wait_until([&] { return (is_done = done()) || (update.done && update.error); }, cause)));
  return is_done ? ok() : check_update();
}

Result<void> EngineContext::finish_update() {
  return wait_beside_update([this] { return update.done && !update.error && !update_stopped; },
                            StallCause::update);
}

Result<void> EngineContext::discard_gradient(const FlatState& flat) {
  if (flat.layout->frozen || !flat.kept_gradient.empty()) return ok();
  return internals.discard(flat.gradient);
}

CollectiveSignature EngineContext::signature(CollectiveSignature::Subject subject,
                                             const FlatState& flat) const {
  return {.subject = subject,
          .unit = flat.layout->unit,
          .group = flat.layout->group,
          .micro_batch = flat.grad.closed_count,
          .step = completed_steps + 1};
}

void EngineContext::start(swap::Move move, MoveProgress& progress, const MoveName& name) const {
  progress = MoveProgress::begun();
  move.on_event = [&progress](swap::HopState state, const Result<void>& result) {
    progress.report(state, result);
  };
  swap::Timeline* const timeline = internals.timeline();
  if (timeline != nullptr && name.track != nullptr) {
    move.on_event = [&progress, timeline, name, began = Clock::steady().now()](swap::HopState state,
                                                                               const Result<void>& result) {
      if (state == swap::HopState::done) {
        std::string object(name.object);
        if (name.number) object += std::to_string(*name.number);
        object += name.of;
        timeline->add_of_tensor(name.track, object, began);
      }
      progress.report(state, result);
    };
  }
  internals.start(std::move(move));
}

void EngineContext::start(std::unique_ptr<swap::Hop> hop, MoveProgress& progress,
                          const MoveName& name) const {
  swap::Move move;
  move.then(std::move(hop));
  start(std::move(move), progress, name);
}

Result<void> EngineContext::exchange(ConstHostSpan mine, HostSpan all, CollectiveSignature::Subject subject) {
  return run(make_exchange_hop(collectives(), mine, all, {.subject = subject, .step = completed_steps + 1}));
}

/// Blocks until the collective is complete. It becomes the head of the order, because the caller has waited for every
/// gather before it.
Result<void> EngineContext::run(std::unique_ptr<swap::Hop> collective) {
  MoveProgress progress;
  start(std::move(collective), progress);
  internals.wait_ignoring_stores([&] { return progress.done; }, StallCause::peers);
  if (progress.error) return fail(*progress.error);
  return ok();
}

}  // namespace penstock::zero
