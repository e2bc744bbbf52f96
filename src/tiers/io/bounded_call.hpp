#pragma once

#include "base/duration_text.hpp"
#include "base/start_thread.hpp"
#include "tiers/io/running_time.hpp"

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace penstock::tiers {

/// Runs `call`, which may block in the kernel without end, on a thread of its own, and waits for it until `deadline`
/// has elapsed in running time. A call that has not returned by then is abandoned: its thread, what it captured and
/// what it returns live until it returns or the process ends. What `call` refers to must live as long.
///
/// Errors: those of `call`; deadline_exceeded; no_space, where no thread can be started. Throws what `call` throws.
template <class T>
Result<T> bounded_call(const char* operation, const std::string& object, TimePoint deadline,
                       std::function<Result<T>()> call) {
  struct State {
    std::mutex mutex;
    std::condition_variable returned;
    std::optional<Result<T>> result;
    std::exception_ptr exception;
  };
  const auto state = std::make_shared<State>();
  const auto run = [state, call = std::move(call)] {
    std::optional<Result<T>> result;
    std::exception_ptr exception;
    try {
      result = call();
    } catch (...) {
      exception = std::current_exception();
    }
    const std::lock_guard lock(state->mutex);
    state->result = std::move(result);
    state->exception = exception;
    state->returned.notify_one();
  };
  PENSTOCK_TRY_ASSIGN(std::thread thread, start_thread(operation, object, run));
  RunningTime running(Clock::steady(), running_time_step(deadline));
  const TimePoint end = running.end_of(deadline);
  const auto has_returned = [&] { return state->result || state->exception; };
  std::unique_lock lock(state->mutex);
  while (!has_returned() && running.elapsed() < end) {
    state->returned.wait_until(lock, std::chrono::steady_clock::time_point(running.next_update(end)));
    (void)running.update();
  }
  const bool returned = has_returned();
  lock.unlock();
  if (returned) {
    thread.join();
    if (state->exception) std::rethrow_exception(state->exception);
    return std::move(*state->result);
  }
  thread.detach();
  return Error(ErrorCode::deadline_exceeded, operation)
      .reason("a file operation did not return in time")
      .object(object)
      .got(duration_text(deadline) + " without an answer")
      .note(
          "state   the call may still run, on a thread that was abandoned; what it creates is removed when "
          "it returns")
      .advice("check the drive and the kernel log (dmesg), or name another directory");
}

}  // namespace penstock::tiers
