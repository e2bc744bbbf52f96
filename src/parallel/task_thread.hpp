#pragma once

#include <penstock/base/executor.hpp>
#include <penstock/base/result.hpp>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <queue>
#include <string>
#include <thread>

namespace penstock::parallel {

/// A thread that runs one task after the other. A task that calls Workers::parallel_blocks() uses all of their threads,
/// which one that Workers::post() runs on a worker does not. The destructor waits for the tasks that were posted.
class TaskThread final : public Executor {
 public:
  /// `name` has at most 15 characters. Errors: no_space, where the thread cannot be started.
  [[nodiscard]] static Result<std::unique_ptr<TaskThread>> create(const std::string& name);
  ~TaskThread() override;

  void post(std::function<void()> task) override;

 private:
  TaskThread() = default;
  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::queue<std::function<void()>> tasks_;
  bool ending_ = false;
  std::thread thread_;
};

}  // namespace penstock::parallel
