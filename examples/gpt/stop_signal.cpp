#include "gpt/stop_signal.hpp"

#include <atomic>
#include <csignal>

namespace gpt {

namespace {

constexpr int stop_signals[] = {SIGINT, SIGTERM};
std::atomic<int> noted{0};
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler stores it");

extern "C" void note(int signal) {
  for (const int each : stop_signals) std::signal(each, SIG_DFL);
  // Two signals that arrive together both come here.
  if (noted.exchange(signal) != 0) ::raise(signal);
}

}  // namespace

void note_stop_signals() {
  for (const int signal : stop_signals) {
    struct sigaction action {};
    if (::sigaction(signal, nullptr, &action) != 0 || action.sa_handler == SIG_IGN) continue;
    action = {};
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    ::sigaction(signal, &action, nullptr);
  }
}

int stop_signal() {
  return noted.load();
}

}  // namespace gpt
