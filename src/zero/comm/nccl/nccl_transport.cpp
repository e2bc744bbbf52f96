#include "zero/comm/nccl/nccl_transport.hpp"

#include "base/abandon.hpp"
#include "base/duration_text.hpp"
#include "zero/comm/collective_errors.hpp"
#include "zero/comm/nccl/nccl_arena.hpp"

#include <chrono>
#include <cstring>
#include <span>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::zero {

namespace {

Error left() {
  return Error(ErrorCode::peer_failed, "Communicator")
      .reason("the rank has left")
      .advice("look for its first error; a trainer that gives up passes it to ProcessGroup::abort()");
}
Error out_of_order(const char* reason) {
  return Error(ErrorCode::failed_state, "Communicator").reason(reason);
}

/// While this thread waits for other ranks, and NCCL or the device wakes nobody.
void pause() {
  std::this_thread::sleep_for(std::chrono::microseconds(100));
}

}  // namespace

NcclTransport::NcclTransport(const NcclLibrary& nccl, std::shared_ptr<JobControl> control,
                             tiers::Device& device, int ordinal, const CollectiveNeeds& needs,
                             const NcclGroupOptions& options)
    : library_(nccl),
      control_(std::move(control)),
      device_(device),
      needs_(needs),
      options_(options),
      nccl_(nccl, {.rank = control_->rank(),
                   .ranks = control_->ranks(),
                   .device = ordinal,
                   .device_name = device.name()}) {}

NcclTransport::~NcclTransport() {
  control_->set_wake({});
  watch_.reset();
  if (!retired_) control_->fail(left());
  // A rank that has not left may still read from this one's memory.
  if (kept_ && !control_->obstacle()) {
    nccl_.abandon();
    abandon(arena_);
  }
  end_collectives();
  if (scratch_.empty() && !arena_) return;
  begin_wait(options_.leave);
  while (!in_flight_.empty() && watch() && !is_late()) pause();
  // A stream that does not end keeps its memory.
  if (!in_flight_.empty()) {
    abandon(std::move(arena_));
  } else if (!scratch_.empty()) {
    device_.release(scratch_);
  }
}

Result<void> NcclTransport::connect() {
  PENSTOCK_TRY_ASSIGN(watch_,
                      WatchThread::start(tiers::running_time_step(options_.deadline), [this] { look(); }));
  set_wake({});
  const std::lock_guard lock(mutex_);
  PENSTOCK_TRY(allocate());
  return meet(options_.join);
}

void NcclTransport::set_wake(std::function<void()> wake) {
  control_->set_wake([watch = watch_.get(), wake = std::move(wake)] {
    watch->nudge();
    if (wake) wake();
  });
}

void NcclTransport::abort(const Error& error) noexcept {
  control_->fail(error);
  if (watch_) watch_->nudge();
}
void NcclTransport::interrupt(const Error& cause) noexcept {
  control_->interrupt(cause);
  watch_->nudge();
}

/// Notices for what is in flight what poll() would, which is not called while no transfer is in progress, nor after a
/// rank has interrupted or failed.
void NcclTransport::look() {
  const std::lock_guard lock(mutex_);
  const bool runs = !in_flight_.empty() || stage_ == Stage::enqueuing || stage_ == Stage::readable;
  if (!nccl_.is_open() || !runs || stage_ >= Stage::ending) return;
  if (control_->obstacle()) {
    // An exchange may be complete.
    stage_ == Stage::comparing ? nccl_.abort() : end_collectives();
  } else if (stage_ == Stage::idle) {
    const auto outcome = advance();
    if (outcome) return;
    broken_ = outcome.error();
    control_->fail(outcome.error());
    end_collectives();
  }
}

Result<void> NcclTransport::allocate() {
  if (size() > 1 && !needs_.exact_slots_max.is_zero()) {
    PENSTOCK_TRY_ASSIGN(scratch_, device_.allocate(needs_.exact_slots_max * (size() - 1)));
  }
  if (needs_.arena.is_zero()) return ok();
  PENSTOCK_TRY_ASSIGN(arena_, allocate_nccl_arena(library_, *device_.cuda_ordinal(), needs_.arena));
  return ok();
}

/// Begins to connect the ranks, which have come in `time`.
Result<void> NcclTransport::meet(TimePoint time) {
  std::vector<std::byte> bytes;
  if (rank() == 0) {
    PENSTOCK_TRY_ASSIGN(const ncclUniqueId id, nccl_.make_id());
    const auto view = std::as_bytes(std::span(&id, 1));
    bytes.assign(view.begin(), view.end());
  }
  PENSTOCK_TRY(control_->start_gather("collectives over NCCL", bytes));
  stage_ = Stage::meeting;
  begin_wait(time);
  return ok();
}

/// The id of rank 0 is here: NCCL connects the ranks.
Result<TransferState> NcclTransport::poll_meeting() {
  PENSTOCK_TRY_ASSIGN(const auto all, control_->poll_gather());
  if (!all) return wait();
  ncclUniqueId id{};
  if ((*all)[0].size() != sizeof(id)) {
    return Error(ErrorCode::peer_failed, "Communicator")
        .object("NCCL's id from rank 0")
        .wanted(ByteCount(sizeof(id)))
        .got(ByteCount((*all)[0].size()));
  }
  std::memcpy(&id, (*all)[0].data(), sizeof(id));
  stage_ = Stage::connecting;
  begin_wait(wait_);
  PENSTOCK_TRY(nccl_.connect(id));
  return poll_nccl();
}

Result<void> NcclTransport::start(const Transfer& transfer) {
  const std::lock_guard lock(mutex_);
  if (auto obstacle = control_->obstacle()) {
    end_collectives();
    return ended(*std::move(obstacle), to_string(transfer));
  }
  if (broken_) return *broken_;
  if (stage_ != Stage::idle) return out_of_order("the previous collective has not completed");
  ByteCount slots;
  for (const DeviceTensor& flat : transfer.flats) slots += flat.bytes.size() / size();
  if (transfer.kind == Transfer::Kind::all_to_all && size() > 1 && slots > needs_.exact_slots_max) {
    return Error::invalid_argument("Communicator::start_reduce_scatter")
        .object("a slot of each flat")
        .reason("they are larger than the scratch for the exact reduction")
        .wanted(needs_.exact_slots_max)
        .got(slots)
        .advice("raise CollectiveNeeds::exact_slots_max, or choose the native reduction");
  }
  PENSTOCK_TRY(control_->start_gather("collective", announcement_of(transfer)));
  transfer_ = transfer;
  stage_ = Stage::comparing;
  begin_wait(options_.deadline);
  return ok();
}

Result<TransferState> NcclTransport::poll() {
  const std::lock_guard lock(mutex_);
  const bool expects_interruption = stage_ == Stage::ending || stage_ == Stage::recovering;
  auto obstacle = control_->obstacle();
  if (obstacle && !(expects_interruption && obstacle->code() == ErrorCode::interrupted)) {
    // Where another rank has completed an exchange, all do.
    if (stage_ == Stage::comparing && transfer_.kind == Transfer::Kind::exchange) {
      if (const auto all = control_->poll_gather(); all && *all) return take(**all);
    }
    const std::string collective = in_progress();
    end_collectives();
    return collective.empty() ? *std::move(obstacle) : ended(*std::move(obstacle), collective);
  }
  if (broken_) return *broken_;
  auto state = advance();
  if (!state) {
    end_collectives();
    // An error of the job is over when the job has recovered.
    if (!control_->obstacle()) broken_ = state.error();
  }
  return state;
}

Result<TransferState> NcclTransport::advance() {
  if (nccl_.is_open()) PENSTOCK_TRY(nccl_.poll());
  PENSTOCK_TRY(watch());
  switch (stage_) {
    case Stage::idle: return TransferState::complete;
    case Stage::comparing: return compare();
    case Stage::readable: return TransferState::readable;
    case Stage::connecting:
    case Stage::registering:
    case Stage::enqueuing: return poll_nccl();
    case Stage::ending: {
      if (!in_flight_.empty()) return TransferState::pending;  // watch() has the deadline
      PENSTOCK_TRY(control_->start_recovery());
      stage_ = Stage::recovering;
      begin_wait(options_.deadline);
      return TransferState::pending;
    }
    case Stage::recovering: {
      PENSTOCK_TRY_ASSIGN(const bool all_have_ended, control_->poll_recovery());
      if (!all_have_ended) return wait();
      PENSTOCK_TRY(meet(options_.deadline));
      return poll_meeting();
    }
    case Stage::meeting: return poll_meeting();
  }
  return TransferState::pending;
}

/// Once all ranks have come with the same transfer, calls NCCL.
Result<TransferState> NcclTransport::compare() {
  PENSTOCK_TRY_ASSIGN(const auto all, control_->poll_gather());
  if (!all) return wait();
  return take(*std::move(all));
}

Result<TransferState> NcclTransport::take(const JobControl::Slots& announcements) {
  PENSTOCK_TRY(take_announcements(rank(), transfer_, announcements));
  if (transfer_.kind == Transfer::Kind::exchange) {
    stage_ = Stage::idle;
    return TransferState::complete;
  }
  stage_ = Stage::enqueuing;
  PENSTOCK_TRY(call_nccl());
  return poll_nccl();
}

Result<void> NcclTransport::call_nccl() {
  tiers::Stream& stream = *transfer_.stream;
  if (transfer_.kind == Transfer::Kind::all_gather) return nccl_.all_gather(stream, transfer_.flats[0].bytes);
  if (transfer_.kind == Transfer::Kind::native_mean) return nccl_.average(stream, transfer_.flats);
  // The last exact reduction, perhaps on another stream, must have read the scratch.
  if (scratch_used_) PENSTOCK_TRY(stream.wait(*scratch_used_));
  return nccl_.exchange_slots(stream, transfer_.flats, scratch_);
}

/// Whether NCCL has done what it was called for.
Result<TransferState> NcclTransport::poll_nccl() {
  PENSTOCK_TRY_ASSIGN(const bool done, nccl_.poll());
  if (!done) return wait();
  if (stage_ == Stage::connecting && arena_) {
    stage_ = Stage::registering;
    PENSTOCK_TRY(nccl_.register_arena(*arena_));
    return poll_nccl();
  }
  const bool transfers = stage_ == Stage::enqueuing;
  if (transfers && transfer_.kind == Transfer::Kind::all_to_all) {
    stage_ = Stage::readable;
    return TransferState::readable;
  }
  stage_ = Stage::idle;
  if (transfers) PENSTOCK_TRY(follow());
  return TransferState::complete;
}

DeviceTensor NcclTransport::slice(std::size_t f, std::uint32_t r) const {
  const DeviceTensor& flat = transfer_.flats[f];
  const ByteCount slot = flat.bytes.size() / size();
  if (r == rank()) return {flat.bytes.subspan(slot * r, slot), flat.dtype};
  return {nccl_.peer_slot(scratch_, transfer_.flats, f, r), flat.dtype};
}

Result<void> NcclTransport::release_slices() {
  const std::lock_guard lock(mutex_);
  stage_ = Stage::idle;
  PENSTOCK_TRY(follow());
  scratch_used_ = in_flight_.back().passed;
  return ok();
}

/// The transfer in progress is on its stream.
Result<void> NcclTransport::follow() {
  PENSTOCK_TRY_ASSIGN(auto passed, events_.record(*transfer_.stream));
  if (in_flight_.empty()) begin_run();
  in_flight_.push_back({.collective = to_string(transfer_), .passed = std::move(passed)});
  return ok();
}

/// Forgets what the streams have passed. A peer that was lost after the transfers were compared is noticed here: the
/// first transfer in flight does not end.
Result<void> NcclTransport::watch() {
  while (!in_flight_.empty()) {
    PENSTOCK_TRY_ASSIGN(const bool passed, in_flight_.front().passed->query());
    if (!passed) break;
    in_flight_.pop_front();
    begin_run();
  }
  if (in_flight_.empty()) return ok();
  (void)runs_->update();
  if (runs_->elapsed() < end_of_run_) return ok();
  const Error error =
      Error(ErrorCode::deadline_exceeded, "Communicator")
          .reason("a collective does not end")
          .object(in_flight_.front().collective)
          .got("all ranks came, and its stream has not passed it in " + duration_text(options_.deadline))
          .advice(
              "look for a rank that has stopped, for its device and for the network "
              "(NCCL_DEBUG=INFO), or raise the deadline of the group");
  control_->fail_job(error);
  return error;
}

void NcclTransport::begin_run() {
  runs_.emplace(*options_.clock, tiers::running_time_step(options_.deadline));
  end_of_run_ = runs_->end_of(options_.deadline);
}

/// Ends the kernels of the communicator, and with it the communicator.
void NcclTransport::end_collectives() noexcept {
  nccl_.abort();
  // NCCL may have enqueued it. If the fence cannot be recorded, the device has failed and executes nothing more.
  if (stage_ == Stage::enqueuing || stage_ == Stage::readable) (void)follow();
  stage_ = Stage::idle;
}

/// The collective that an obstacle ends: the first that this rank has started and its stream has not passed.
std::string NcclTransport::in_progress() const {
  if (!in_flight_.empty()) return in_flight_.front().collective;
  const bool transfers =
      stage_ == Stage::comparing || stage_ == Stage::enqueuing || stage_ == Stage::readable;
  return transfers ? to_string(transfer_) : "";
}

Result<void> NcclTransport::start_recovery(tiers::Stream&) {
  const std::lock_guard lock(mutex_);
  const auto obstacle = control_->obstacle();
  if (obstacle && obstacle->code() != ErrorCode::interrupted) return *obstacle;
  if (stage_ >= Stage::ending) return out_of_order("the recovery has started already");
  if (!obstacle) return out_of_order("the group is not interrupted");
  end_collectives();
  broken_.reset();
  stage_ = Stage::ending;
  return ok();
}

void NcclTransport::retire(tiers::Stream& stream) noexcept {
  set_wake({});
  const std::lock_guard lock(mutex_);
  begin_wait(options_.leave);
  const bool peaceful = nccl_.is_open() && stage_ == Stage::idle && !broken_ && !control_->obstacle();
  if (!peaceful || !finish_in_flight() || !leave()) {
    control_->fail(left());
    end_collectives();
  }
  for (const InFlight& one : in_flight_) (void)stream.wait(*one.passed);  // else the stream has failed
  broken_ = left();
  retired_ = true;
}

/// False, if it takes too long or fails.
bool NcclTransport::finish_in_flight() {
  while (!in_flight_.empty()) {
    if (!watch() || is_late()) return false;
    pause();
  }
  return true;
}

/// Frees the communicator once no rank's kernels use it any more; keeps it, where a rank does not leave in time. False,
/// if the job or NCCL fails.
bool NcclTransport::leave() {
  if (!control_->start_gather(std::string(JobControl::leave_label), {})) return false;
  while (true) {
    const auto all = control_->poll_gather();
    if (!all) return false;
    if (*all) break;
    if (is_late()) return kept_ = true;
    pause();
  }
  if (!nccl_.finalize()) return false;
  while (true) {
    const auto done = nccl_.poll();
    if (!done) return false;
    if (*done) break;
    if (is_late()) return kept_ = true;
    pause();
  }
  nccl_.destroy();
  return true;
}

void NcclTransport::begin_wait(TimePoint time) {
  wait_ = time;
  waited_.emplace(*options_.clock, tiers::running_time_step(time));
  end_of_wait_ = waited_->end_of(time);
}

bool NcclTransport::is_late() {
  (void)waited_->update();
  return waited_->elapsed() >= end_of_wait_;
}

/// pending until the deadline of what this rank waits for; then the job fails.
Result<TransferState> NcclTransport::wait() {
  if (!is_late()) return TransferState::pending;
  const Error error = late();
  control_->fail_job(error);
  return error;
}

Error NcclTransport::late() const {
  const bool transfers = stage_ == Stage::comparing || stage_ == Stage::enqueuing;
  std::string what = transfers                      ? to_string(transfer_)
                     : stage_ == Stage::recovering  ? "recovery"
                     : stage_ == Stage::registering ? "registration of device memory"
                                                    : "connection of the ranks";
  if (stage_ != Stage::enqueuing && stage_ < Stage::connecting)
    return ranks_missing(std::move(what), names_of(control_->absent()), wait_);
  return Error(ErrorCode::deadline_exceeded, "Communicator")
      .reason("NCCL does not finish what all ranks have begun")
      .object(std::move(what))
      .got("it is in progress for " + duration_text(wait_))
      .advice(
          "set NCCL_DEBUG=INFO, and see whether the hosts reach each other on the interface that "
          "NCCL_SOCKET_IFNAME names");
}

}  // namespace penstock::zero
