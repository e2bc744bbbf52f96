#pragma once

namespace gpt {

/// From now on the first SIGINT or SIGTERM is only noted, and a second one ends the process at once. A signal that the
/// process ignores, for example under nohup, stays ignored.
void note_stop_signals();

/// The signal that was noted, 0 for none. Safe from any thread.
[[nodiscard]] int stop_signal();

}  // namespace gpt
