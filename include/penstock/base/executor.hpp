#pragma once

#include <functional>

namespace penstock {

/// Runs work on tensor data: checksums, accumulation, updates. The embedder provides it, with the rank's share of the
/// cores. Safe from any thread.
class Executor {
 public:
  virtual ~Executor() = default;

  /// Runs `task` once, on this or another thread, now or later. `task` does not throw.
  virtual void post(std::function<void()> task) = 0;
};

/// Runs each task immediately, on the thread that posts it.
class InlineExecutor final : public Executor {
 public:
  void post(std::function<void()> task) override { task(); }
};

}  // namespace penstock
