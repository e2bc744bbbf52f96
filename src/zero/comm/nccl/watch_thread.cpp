#include "zero/comm/nccl/watch_thread.hpp"

#include "base/start_thread.hpp"

#include <utility>

namespace penstock::zero {

Result<std::unique_ptr<WatchThread>> WatchThread::start(TimePoint interval, std::function<void()> look) {
  std::unique_ptr<WatchThread> watch(new WatchThread);
  PENSTOCK_TRY_ASSIGN(watch->thread_, start_thread("WatchThread::start", "the watch of NCCL's collectives",
                                                   [watch = watch.get(), interval, look = std::move(look)] {
                                                     watch->run(interval, look);
                                                   }));
  return watch;
}

WatchThread::~WatchThread() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WatchThread::nudge() noexcept {
  {
    const std::lock_guard lock(mutex_);
    nudged_ = true;
  }
  changed_.notify_all();
}

void WatchThread::run(TimePoint interval, const std::function<void()>& look) {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    (void)changed_.wait_for(lock, interval, [this] { return nudged_ || stopping_; });
    nudged_ = false;
    if (stopping_) return;
    lock.unlock();
    look();
    lock.lock();
  }
}

}  // namespace penstock::zero
