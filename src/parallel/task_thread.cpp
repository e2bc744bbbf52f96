#include "parallel/task_thread.hpp"

#include "base/start_thread.hpp"

#include <pthread.h>
#include <utility>

namespace penstock::parallel {

Result<std::unique_ptr<TaskThread>> TaskThread::create(const std::string& name) {
  std::unique_ptr<TaskThread> made(new TaskThread);
  PENSTOCK_TRY_ASSIGN(made->thread_, start_thread("TaskThread::create", name, [thread = made.get(), name] {
                        ::pthread_setname_np(::pthread_self(), name.c_str());
                        thread->run();
                      }));
  return made;
}

TaskThread::~TaskThread() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void TaskThread::post(std::function<void()> task) {
  if (!task) return;
  {
    const std::lock_guard lock(mutex_);
    tasks_.push(std::move(task));
  }
  changed_.notify_one();
}

void TaskThread::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [this] { return ending_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    const auto task = std::move(tasks_.front());
    tasks_.pop();
    lock.unlock();
    task();
    lock.lock();
  }
}

}  // namespace penstock::parallel
