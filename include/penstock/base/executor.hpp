#pragma once

#include <functional>

namespace penstock {

/// Runs tasks on tensor data, such as checksums and the accumulation of gradients. parallel::Workers is one; an
/// embedder may provide its own. Safe from any thread.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Runs `task` once, on this or another thread, now or later. `task` does not throw, nor may post(): an
  /// exception ends the process. An empty task is ignored.
  virtual void post(std::function<void()> task) = 0;
};

/// Runs each task immediately, on the thread that posts it.
class InlineExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override {
    if (task) task();
  }
};

}  // namespace penstock
