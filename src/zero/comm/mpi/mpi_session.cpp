#include "zero/comm/mpi/mpi_session.hpp"

#include "base/duration_text.hpp"
#include "base/start_thread.hpp"
#include "zero/comm/mpi/mpi_error.hpp"

#include <mpi.h>
#include <unistd.h>
#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace penstock::zero {

namespace {

constexpr const char* operation = "MpiSession::start";
constexpr TimePoint finalize_max_after_loss = std::chrono::seconds(5);
constexpr TimePoint deadline_max = std::chrono::hours(24 * 365);  // `forever` after now is no time

/// Initialises MPI and finalises it, on one thread, as MPI demands. Callers wait for it as long as they want to.
class MpiMain {
 public:
  /// Not destroyed, because the thread may outlive everything else.
  static MpiMain& instance() {
    static MpiMain* const main = new MpiMain;
    return *main;
  }

  [[nodiscard]] bool is_started() {
    const std::lock_guard lock(mutex_);
    return state_ != State::none;
  }
  Result<void> start(TimePoint deadline, const std::function<bool()>& has_failed) {
    deadline = std::min(deadline, deadline_max);
    std::unique_lock lock(mutex_);
    deadline_ = std::max(deadline_, deadline);
    if (state_ == State::none) {
      PENSTOCK_TRY_ASSIGN(std::thread thread,
                          start_thread(operation, "the thread of MPI", [this] { run(); }));
      thread.detach();
      state_ = State::initialising;
    }
    const auto has_started = [this] { return state_ != State::initialising; };
    constexpr TimePoint look = std::chrono::milliseconds(100);
    for (TimePoint rest = deadline; !changed_.wait_for(lock, std::min(rest, look), has_started);
         rest -= std::min(rest, look)) {
      if (has_failed && has_failed()) {
        has_lost_ = true;
        return Error(ErrorCode::peer_failed, operation).reason("a rank has failed before MPI has started");
      }
      if (rest > look) continue;
      return Error(ErrorCode::deadline_exceeded, operation)
          .reason("MPI_Init_thread did not return in time")
          .got(duration_text(deadline) + " without an answer")
          .advice("all ranks start together: look for one that has not started MPI");
    }
    if (status_ != MPI_SUCCESS)
      return mpi_error(ErrorCode::peer_failed, operation, "MPI_Init_thread", status_);
    ++sessions_;
    return ok();
  }

  void end_session() noexcept {
    const std::lock_guard lock(mutex_);
    --sessions_;
  }
  void note_loss() noexcept {
    const std::lock_guard lock(mutex_);
    has_lost_ = true;
  }

 private:
  enum class State : std::uint8_t { none, initialising, running, finalising, finalised };

  void run() noexcept {
    int provided = 0;
    int status = MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided);
    // Of calls on a communicator that has no handler of its own, such as MPI_Comm_idup on this one.
    if (status == MPI_SUCCESS) status = MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
    std::unique_lock lock(mutex_);
    status_ = status;
    state_ = State::running;
    changed_.notify_all();
    if (status != MPI_SUCCESS) return;
    std::atexit([] { instance().finish(); });
    changed_.wait(lock, [this] { return state_ == State::finalising; });
    lock.unlock();
    (void)MPI_Finalize();
    lock.lock();
    state_ = State::finalised;
    changed_.notify_all();
  }

  /// At exit.
  void finish() noexcept {
    if (::getpid() != process_) return;  // a child that was forked
    std::unique_lock lock(mutex_);
    if (sessions_ > 0) return;  // a thread may be in a call of MPI
    state_ = State::finalising;
    changed_.notify_all();
    const TimePoint patience = has_lost_ ? std::min(deadline_, finalize_max_after_loss) : deadline_;
    changed_.wait_for(lock, patience, [this] { return state_ == State::finalised; });
  }

  const pid_t process_ = ::getpid();
  std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::none;
  int status_ = MPI_SUCCESS;
  TimePoint deadline_{};
  int sessions_ = 0;
  bool has_lost_ = false;
};

Result<void> check_threads(const char* advice) {
  int provided = MPI_THREAD_SINGLE;
  if (const int status = MPI_Query_thread(&provided); status != MPI_SUCCESS)
    return mpi_error(ErrorCode::peer_failed, operation, "MPI_Query_thread", status);
  if (provided >= MPI_THREAD_MULTIPLE) return ok();
  return Error::unsupported(operation)
      .reason("MPI was initialised for fewer threads")
      .wanted("MPI_THREAD_MULTIPLE")
      .got(provided == MPI_THREAD_SERIALIZED ? "MPI_THREAD_SERIALIZED"
           : provided == MPI_THREAD_FUNNELED ? "MPI_THREAD_FUNNELED"
                                             : "MPI_THREAD_SINGLE")
      .advice(advice);
}

}  // namespace

bool MpiSession::is_finalized() noexcept {
  int finalized = 0;
  return MPI_Finalized(&finalized) != MPI_SUCCESS || finalized != 0;
}

Result<MpiSession> MpiSession::start(TimePoint deadline, const std::function<bool()>& has_failed) {
  if (is_finalized()) {
    return Error(ErrorCode::failed_state, operation)
        .reason("MPI is finalised, and cannot be initialised again")
        .advice("call MPI_Finalize after Penstock's objects are destroyed");
  }
  int initialized = 0;
  if (const int status = MPI_Initialized(&initialized); status != MPI_SUCCESS)
    return mpi_error(ErrorCode::peer_failed, operation, "MPI_Initialized", status);
  if (initialized != 0 && !MpiMain::instance().is_started()) {
    PENSTOCK_TRY(check_threads(
        "pass MPI_THREAD_MULTIPLE to MPI_Init_thread, or leave the initialisation to Penstock"));
    return MpiSession(false);
  }
  PENSTOCK_TRY(MpiMain::instance().start(deadline, has_failed));
  MpiSession session(true);
  PENSTOCK_TRY(check_threads("use an MPI that supports threads, or another transport"));
  return session;
}

MpiSession::~MpiSession() {
  if (counted_) MpiMain::instance().end_session();
}

void MpiSession::do_not_wait() noexcept {
  MpiMain::instance().note_loss();
}

}  // namespace penstock::zero
