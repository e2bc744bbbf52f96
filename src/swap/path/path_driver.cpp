#include "swap/path/path_driver.hpp"

#include "base/start_thread.hpp"
#include "tiers/io/bounded_call.hpp"
#include "tiers/io/engine_errors.hpp"

#include <pthread.h>
#include <time.h>
#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

namespace penstock::swap {

using tiers::BlockFile;
using tiers::IoOperation;

namespace {

const char* operation_name(IoOperation operation) {
  constexpr const char* names[] = {"Path::read", "Path::write", "Path::flush"};
  return names[static_cast<std::size_t>(operation)];
}

Error with_range(Error error, const std::string& file, const PathDriver::Command& command) {
  error = std::move(error).object(file);
  if (command.operation == IoOperation::flush) return error;
  return std::move(error).at(command.offset).wanted(command.buffer.size());
}

}  // namespace

PathDriver::PathDriver(const PathOptions& options, std::string name, std::unique_ptr<tiers::IoEngine> engine)
    : deadline_(options.deadline),
      request_max_(options.request_max),
      clock_(*options.clock),
      name_(std::move(name)),
      engine_(std::move(engine)),
      watch_(clock_, tiers::running_time_step(deadline_)) {}

Result<std::shared_ptr<PathDriver>> PathDriver::create(const PathOptions& options, tiers::File file,
                                                       std::unique_ptr<tiers::IoEngine> engine) {
  const std::shared_ptr<PathDriver> driver(
      new PathDriver(options, file.properties().name, std::move(engine)));
  PENSTOCK_TRY_ASSIGN(driver->file_, BlockFile::create(std::move(file), driver->engine_,
                                                       {.size = options.capacity,
                                                        .request_max = options.request_max,
                                                        .in_flight_max = options.in_flight_max,
                                                        .deadline = options.deadline,
                                                        .clock = options.clock}));
  return driver;
}

Result<void> PathDriver::start(std::function<void()> notify) {
  notify_ = std::move(notify);
  threaded_ = true;
  auto thread = start_thread("Path::start_driver", "the driver of the " + name_,
                             [self = shared_from_this()] { self->run(); });
  threaded_ = thread.has_value();
  if (!thread) return thread.error();
  thread_ = std::move(*thread);
  return ok();
}

void PathDriver::run() noexcept {
  ::pthread_setname_np(::pthread_self(), "penstock-path");
  while (!should_end()) {
    if (turn(forever)) notify();
  }
  close();
}

bool PathDriver::should_end() {
  const std::lock_guard lock(mutex_);
  return stuck_ || (stopping_ && queue_.empty() && finished_.empty() && !file_->busy());
}

void PathDriver::notify() {
  const std::lock_guard lock(notify_mutex_);
  if (notify_) notify_();
}

bool PathDriver::turn(TimePoint deadline) {
  bool replaced = false;
  {
    std::unique_lock lock(mutex_);
    replaced = register_buffers(lock);
    if (!buffers_wanted_) start_transfers();
    if (stopping_ && queue_.empty() && !file_->busy()) deadline = TimePoint::min();
  }
  if (!finished_.empty() || replaced) deadline = TimePoint::min();
  file_->poll(deadline);
  while (auto one = file_->take_finished()) finished_.push_back(std::move(*one));

  bool ended = false;
  {
    const std::lock_guard lock(mutex_);
    if (stuck_) return false;  // the transfers have ended without their results
    for (const Finished& one : finished_) ended |= end_part(static_cast<std::uint32_t>(one.tag), one.result);
    finished_.clear();
    if (!buffers_wanted_) start_transfers();
    counters_ = file_->counters();
    saturated_ = file_->saturated();
  }
  file_->submit();                                 // before others are told
  return ended || replaced || !finished_.empty();  // refused ones end in the next turn
}

void PathDriver::replace_buffers(HostSpan buffers) {
  {
    const std::lock_guard lock(mutex_);
    buffers_.reset();
    if (stuck_) return;
    buffers_wanted_ = buffers;
  }
  engine_.wake();
}

bool PathDriver::buffers_replaced() const {
  const std::lock_guard lock(mutex_);
  return (!buffers_wanted_ && !replacing_) || stuck_;
}

std::optional<PathDriver::Buffers> PathDriver::buffers() const {
  const std::lock_guard lock(mutex_);
  return buffers_;
}

/// Does what replace_buffers() asks for, if no transfer is in flight. True if it has. The system calls are made without
/// the lock.
bool PathDriver::register_buffers(std::unique_lock<std::mutex>& lock) {
  if (!buffers_wanted_ || file_->busy()) return false;
  const HostSpan buffers = *std::exchange(buffers_wanted_, std::nullopt);
  replacing_ = true;
  lock.unlock();
  // A kernel waits in the call for requests that use the memory.
  const bool idle = file_->overdue_count() == 0 && engine_.failure().empty();
  const bool detached = idle && engine_.detach();
  if (idle && !buffers.empty()) engine_.attach(tiers::FileHandle::none, buffers);
  std::string notes = engine_.notes();
  lock.lock();
  replacing_ = false;
  buffers_ = {.detached = detached, .notes = std::move(notes)};
  return true;
}

/// Passes so many of the queued transfers to the file that it does not run out of them: those that become urgent later
/// go before the others.
void PathDriver::start_transfers() {
  while (!queue_.empty() && file_->takes_more()) {
    const std::uint32_t slot = queue_.front();
    Transfer& transfer = *slots_[slot];
    const auto& [operation, offset, buffer, tag, urgent] = transfer.command;
    const ByteCount length = std::min(request_max_, buffer.size() - transfer.passed);
    auto started =
        file_->start(operation, offset + transfer.passed, buffer.subspan(transfer.passed, length), slot);
    if (!started && started.error().code() == ErrorCode::would_block) return;
    if (!started) finished_.push_back({slot, operation, started});
    transfer.passed += length;
    ++transfer.parts;
    queue_.pass(/*whole=*/transfer.passed == buffer.size());
  }
}

Error PathDriver::refusal(const Command& command) const {
  Error refused = Error(ErrorCode::failed_state, operation_name(command.operation))
                      .reason("refused since the kernel did not return from a system call")
                      .note("cause   " + stuck_->message());
  return with_range(std::move(refused), name_, command);
}

void PathDriver::post(const Command& command) {
  std::unique_lock lock(mutex_);
  if (stuck_) {
    outcomes_.push_back({command.tag, command.operation, refusal(command)});
    lock.unlock();
    return notify();
  }
  // Where transfers are queued, an earlier post has woken the driver, or its file is full: then it waits for a
  // completion, which wakes it.
  const bool wake = queue_.empty() && !saturated_;
  queue_.push({.slot = take_slot(command), .operation = command.operation, .urgent = command.urgent});
  lock.unlock();
  if (wake) engine_.wake();
}

void PathDriver::hasten(const std::atomic<bool>& urgent) {
  const std::lock_guard lock(mutex_);
  queue_.hasten(urgent);
}

std::uint32_t PathDriver::take_slot(const Command& command) {
  if (free_slots_.size() == slots_.size()) busy_since_ = Clock::steady().now();
  if (free_slots_.empty()) {
    slots_.emplace_back(Transfer{command});
    return static_cast<std::uint32_t>(slots_.size() - 1);
  }
  const std::uint32_t slot = free_slots_.back();
  free_slots_.pop_back();
  slots_[slot] = Transfer{command};
  return slot;
}

/// True if its transfer has ended: with the first error, unless the kernel may use the buffer still.
bool PathDriver::end_part(std::uint32_t slot, const Result<void>& result) {
  Transfer& transfer = *slots_[slot];
  --transfer.parts;
  if (!result) {
    if (transfer.result || result.error().code() == ErrorCode::deadline_exceeded) transfer.result = result;
    transfer.passed = transfer.command.buffer.size();
    queue_.remove(slot);
  }
  if (transfer.parts > 0 || transfer.passed < transfer.command.buffer.size()) return false;
  end(slot, std::move(transfer.result));
  return true;
}

void PathDriver::end(std::uint32_t slot, Result<void> result) {
  const Command& command = slots_[slot]->command;
  outcomes_.push_back({command.tag, command.operation, std::move(result)});
  slots_[slot].reset();
  free_slots_.push_back(slot);
  if (free_slots_.size() == slots_.size()) busy_ += Clock::steady().now() - busy_since_;
}

void PathDriver::take_outcomes(std::vector<Finished>& outcomes) {
  std::unique_lock lock(mutex_);
  const bool stuck = watch();
  std::move(outcomes_.begin(), outcomes_.end(), std::back_inserter(outcomes));
  outcomes_.clear();
  lock.unlock();
  if (stuck) notify();  // threads that wait for buffers_replaced()
}

bool PathDriver::is_watched() const {
  const bool waited_for = buffers_wanted_ || replacing_ || free_slots_.size() < slots_.size();
  return threaded_ && !stuck_ && deadline_ != forever && waited_for;
}

TimePoint PathDriver::watch_interval() const {
  const std::lock_guard lock(mutex_);
  return is_watched() ? tiers::running_time_step(deadline_) : forever;
}

/// While transfers are outstanding, reap() waits for a step at most (BlockFile::next_deadline()), and an idle one is
/// woken: a call that has not returned a deadline and a step after it was first seen here does not return.
/// True if it has ended all transfers.
bool PathDriver::watch() {
  const std::uint64_t call = engine_.call();
  if (!is_watched() || call % 2 == 0) {
    watched_call_ = 0;
    return false;
  }
  (void)watch_.update();
  if (call != watched_call_) {
    watched_call_ = call;
    watched_since_ = watch_.elapsed();
  } else if (watch_.elapsed() - watched_since_ - tiers::running_time_step(deadline_) > deadline_) {
    end_all_transfers();
    return true;
  }
  return false;
}

/// The kernel may use the buffers of the transfers that the file has taken, until the call returns: they end with
/// deadline_exceeded. The file takes no others: those in the queue are refused, and their buffers are free.
void PathDriver::end_all_transfers() {
  engine_.refuse();
  stuck_ = tiers::call_overdue("Path::drive", deadline_).object(name_);
  std::set<std::uint32_t> waiting;
  for (const std::uint32_t slot : queue_.take_all())
    if (slots_[slot]->parts == 0) waiting.insert(slot);
  // The cause comes first: the path is retired with the first error.
  for (std::uint32_t slot = 0; slot < slots_.size(); ++slot) {
    if (!slots_[slot] || waiting.contains(slot)) continue;
    const Command& command = slots_[slot]->command;
    end(slot, with_range(tiers::call_overdue(operation_name(command.operation), deadline_), name_, command));
  }
  for (const std::uint32_t slot : waiting) end(slot, refusal(slots_[slot]->command));
}

bool PathDriver::stop() {
  if (released_) return *released_;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) {
    engine_.wake();
    released_ = join_or_abandon();
  } else {
    released_ = close_engine();
    if (!*released_) file_->leave_open();
    close_file();
  }
  return *released_;
}

/// Closes engine and file on the driver's thread: closing the file may wait for the file system.
void PathDriver::close() noexcept {
  const bool at_rest = close_engine();
  {
    const std::lock_guard lock(mutex_);
    at_rest_ = at_rest;
    engine_closed_ = true;
    changed_.notify_all();
  }
  if (!at_rest) file_->leave_open();
  file_.reset();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

/// Does not wait for requests past their deadline.
bool PathDriver::close_engine() noexcept {
  std::unique_lock lock(mutex_);
  const bool overdue = stuck_ || file_->overdue_count() > 0;
  lock.unlock();
  return engine_.close(overdue ? clock_.now() : forever);
}

/// Without a driver's thread.
void PathDriver::close_file() noexcept {
  const std::function<Result<void>()> close_it = [self = shared_from_this()]() -> Result<void> {
    self->file_.reset();
    return ok();
  };
  const auto closed = tiers::bounded_call<void>("Path::stop_driver", name_, deadline_, close_it);
  if (!closed && closed.error().code() != ErrorCode::deadline_exceeded) (void)close_it();
}

/// True when the engine has no request in flight any more, even if closing the file hangs.
bool PathDriver::join_or_abandon() {
  tiers::RunningTime running(Clock::steady(), tiers::running_time_step(deadline_));
  const TimePoint end = running.end_of(deadline_);
  std::unique_lock lock(mutex_);
  // A file with requests past their deadline does not close in time either.
  const auto hangs = [this] { return stuck_ || (engine_closed_ && !at_rest_); };
  while (!ended_ && !hangs() && running.elapsed() < end) {
    changed_.wait_until(lock, std::chrono::steady_clock::time_point(running.next_update(end)));
    (void)running.update();
  }
  const bool ended = ended_, released = engine_closed_ && at_rest_;
  lock.unlock();
  if (ended) {
    thread_.join();
  } else {
    thread_.detach();
    const std::lock_guard notifying(notify_mutex_);
    notify_ = nullptr;
  }
  return released;
}

TimePoint PathDriver::cpu_time() const {
  clockid_t clock{};
  timespec used{};
  auto& thread = const_cast<std::thread&>(thread_);
  if (!thread.joinable() || ::pthread_getcpuclockid(thread.native_handle(), &clock) != 0 ||
      ::clock_gettime(clock, &used) != 0) {
    return TimePoint::zero();
  }
  return std::chrono::seconds(used.tv_sec) + TimePoint(used.tv_nsec);
}

tiers::FileCounters PathDriver::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

TimePoint PathDriver::busy() const {
  const std::lock_guard lock(mutex_);
  const bool is_idle = free_slots_.size() == slots_.size();
  return is_idle ? busy_ : busy_ + (Clock::steady().now() - busy_since_);
}

}  // namespace penstock::swap
