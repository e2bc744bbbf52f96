#include <penstock/base/on_signal.hpp>

#include "base/owned_fd.hpp"
#include "base/start_thread.hpp"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <string>
#include <thread>
#include <utility>

namespace penstock {

namespace {

constexpr const char* operation = "OnSignal::create";
constexpr std::array faults = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGABRT, SIGSYS};

/// The pipe of a signal in one process. It is never closed: a handler may be about to write to it at any time.
struct Pipe {
  int read_end = -1, write_end = -1;
  pid_t owner = 0;  // the process that made it
  std::atomic<bool> taken{true};
};
std::array<std::atomic<Pipe*>, NSIG> pipes{};

std::atomic<Pipe*>& pipe_of(int signal) {
  return pipes[static_cast<std::size_t>(signal)];
}

void write_to(const Pipe& pipe) {
  (void)!::write(pipe.write_end, "", 1);  // a full pipe has a call to come already
}

/// Uses only what a handler may: signal-safety(7), and an atomic without a lock.
void handle(int signal) {
  static_assert(std::atomic<Pipe*>::is_always_lock_free);
  const int saved = errno;
  const Pipe* const pipe = pipe_of(signal);
  if (pipe != nullptr && pipe->owner == ::getpid()) write_to(*pipe);
  errno = saved;
}

/// Removes what was written. True if there was anything.
bool drain(const Pipe& pipe) {
  bool any = false;
  for (std::array<char, 64> bytes; ::read(pipe.read_end, bytes.data(), bytes.size()) > 0;) any = true;
  return any;
}

void wait_for(const Pipe& pipe) {
  pollfd wait{.fd = pipe.read_end, .events = POLLIN, .revents = 0};
  (void)::poll(&wait, 1, -1);
}

Error is_taken(int signal) {
  return Error(ErrorCode::already_exists, operation)
      .object("signal " + std::to_string(signal))
      .reason("another object has it")
      .advice("destroy that one first, or use another signal");
}

/// The signal's pipe, for one object alone. A process that was forked makes pipes of its own.
Result<Pipe*> take_pipe(int signal) {
  Pipe* known = pipe_of(signal);
  if (known != nullptr && known->owner == ::getpid()) {
    if (known->taken.exchange(true)) return is_taken(signal);
    (void)drain(*known);  // what came while no object had the signal
    return known;
  }
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) return Error::from_errno(operation, errno);
  OwnedFd read_end(ends[0]), write_end(ends[1]);
  if (!read_end.is_open() || !write_end.is_open()) return Error::from_errno(operation, errno);
  auto made = std::make_unique<Pipe>();
  made->read_end = read_end.get();
  made->write_end = write_end.get();
  made->owner = ::getpid();
  if (!pipe_of(signal).compare_exchange_strong(known, made.get())) return is_taken(signal);
  (void)read_end.release();
  (void)write_end.release();
  return made.release();
}

}  // namespace

struct OnSignal::State {
  State(int of, Pipe& its, std::function<void()> function)
      : signal(of), pipe(its), call(std::move(function)) {}
  ~State() {
    if (pipe.owner != ::getpid()) {  // this process was forked, and has no such thread to join or to detach
      (void)thread.release();
      return;
    }
    if (thread) {
      give_back();
      stopping = true;
      write_to(pipe);
      thread->join();
    }
    pipe.taken = false;
  }
  /// With signals blocked, so that none interrupts the function; a fault in it still has its handler.
  ///
  /// Errors: no_space, at a limit on threads.
  Result<void> start() {
    sigset_t blocked, before;
    ::sigfillset(&blocked);
    for (const int fault : faults) ::sigdelset(&blocked, fault);
    ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
    auto started =
        start_thread(operation, "the thread of signal " + std::to_string(signal), [this] { run(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    if (!started) return started.error();
    thread = std::make_unique<std::thread>(std::move(*started));
    return ok();
  }
  void run() const {
    while (true) {
      wait_for(pipe);
      const bool asked = drain(pipe);
      if (stopping) return;
      if (asked) call();
    }
  }
  void give_back() const {
    struct sigaction current {};
    const bool is_ours = ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == handle;
    if (is_ours) (void)::sigaction(signal, &former, nullptr);
  }

  const int signal;
  Pipe& pipe;
  const std::function<void()> call;
  struct sigaction former {};
  std::atomic<bool> stopping{false};
  std::unique_ptr<std::thread> thread;
};

OnSignal::OnSignal(std::unique_ptr<State> state) : state_(std::move(state)) {}
OnSignal::~OnSignal() = default;

Result<std::unique_ptr<OnSignal>> OnSignal::create(int signal, std::function<void()> call) {
  struct sigaction former {};
  const bool has_handler = signal > 0 && signal < NSIG && signal != SIGKILL && signal != SIGSTOP &&
                           std::ranges::find(faults, signal) == faults.end() &&
                           ::sigaction(signal, nullptr, &former) == 0;
  if (!has_handler) {
    return Error::invalid_argument(operation)
        .object("signal")
        .reason("it has no handler, or a fault causes it")
        .wanted("a signal such as SIGUSR1 (" + std::to_string(SIGUSR1) + ")")
        .got(std::to_string(signal));
  }
  if (!call) return Error::invalid_argument(operation).object("call").reason("it is empty");
  PENSTOCK_TRY_ASSIGN(Pipe* const pipe, take_pipe(signal));
  auto state = std::make_unique<State>(signal, *pipe, std::move(call));
  PENSTOCK_TRY(state->start());
  struct sigaction action {};
  action.sa_handler = handle;
  action.sa_flags = SA_RESTART;
  (void)::sigaction(signal, &action, &state->former);
  return std::unique_ptr<OnSignal>(new OnSignal(std::move(state)));
}

}  // namespace penstock
