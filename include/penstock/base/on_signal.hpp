#pragma once

#include <penstock/base/result.hpp>

#include <functional>
#include <memory>

namespace penstock {

/// Calls a function each time that the process gets a signal, such as SIGUSR1: `kill -USR1 PID` asks a run for its
/// report.
///
///     auto asked = OnSignal::create(SIGUSR1, [&] { std::fputs(to_text(report_of(runtime)).c_str(), stderr); });
///
/// The function runs on a thread of its own, where it may wait; it throws nothing, and does not destroy the object.
/// Signals that come during a call cause one more. Nothing is called while every thread blocks the signal.
///
/// The destructor waits for the call in progress, and gives the signal its former action, unless it has another one by
/// now. A process that was forked ignores the signal until it creates an object of its own.
class OnSignal {
 public:
  /// Errors: invalid_argument, for a signal that has no handler, such as SIGKILL, or that a fault causes, such as
  /// SIGSEGV, and for an empty function; already_exists, while another object has the signal; no_space, at a limit on
  /// threads or files.
  [[nodiscard]] static Result<std::unique_ptr<OnSignal>> create(int signal, std::function<void()> call);
  ~OnSignal();

 private:
  struct State;
  explicit OnSignal(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace penstock
