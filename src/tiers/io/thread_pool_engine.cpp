#include "tiers/io/thread_pool_engine.hpp"

#include "base/start_thread.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <thread>
#include <vector>

namespace penstock::tiers {

namespace {

constexpr ByteCount request_max = 1_GiB;

std::int64_t run(const IoRequest& request) noexcept {
  const int fd = static_cast<int>(request.file);
  const auto offset = static_cast<off_t>(request.offset.value());
  const std::uint64_t length = std::min(request.buffer.size(), request_max).value();
  ssize_t result = 0;
  switch (request.operation) {
    case IoOperation::read: result = ::pread(fd, request.buffer.data(), length, offset); break;
    case IoOperation::write: result = ::pwrite(fd, request.buffer.data(), length, offset); break;
    case IoOperation::flush: result = ::fdatasync(fd); break;
  }
  return result >= 0 ? result : -errno;
}

/// State shared with the threads: a thread that hangs in a system call outlives the engine.
struct Shared {
  explicit Shared(std::uint32_t writers) : writers_max(writers) {}

  std::uint32_t writers_max;  // threads that may write or flush at a time: the others remain for reads
  std::mutex mutex;
  std::condition_variable work, completed;
  std::pmr::unsynchronized_pool_resource nodes;
  std::pmr::deque<IoRequest> queue{&nodes};
  std::pmr::deque<IoCompletion> done{&nodes};
  std::uint32_t in_flight = 0, running = 0, writing = 0;
  bool closing = false, woken = false;

  /// The oldest request that a thread may run now: the first, or the first read while writes occupy all their threads.
  auto next() {
    if (writing < writers_max) return queue.begin();
    return std::find_if(queue.begin(), queue.end(),
                        [](const IoRequest& request) { return request.operation == IoOperation::read; });
  }

  void serve() noexcept {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] { return next() != queue.end() || closing; });
      const auto found = next();
      if (found == queue.end()) return;  // close() has emptied the queue
      const IoRequest request = *found;
      queue.erase(found);
      const std::uint32_t writes = request.operation == IoOperation::read ? 0 : 1;
      ++running;
      writing += writes;
      lock.unlock();
      const std::int64_t result = run(request);
      lock.lock();
      --running;
      writing -= writes;
      if (writes > 0) work.notify_one();  // a write may have waited for it
      done.push_back({request.tag, result});
      completed.notify_all();
    }
  }
};

class ThreadPoolEngine final : public IoEngine {
 public:
  explicit ThreadPoolEngine(const ThreadPoolOptions& options)
      : options_(options), shared_(std::make_shared<Shared>(options.threads)) {}

  ~ThreadPoolEngine() override { (void)ThreadPoolEngine::close(forever); }

  /// Works with fewer threads than requested, but at least two.
  Result<void> start_threads() {
    while (threads_.size() < shared_->writers_max + 1) {
      auto started =
          start_thread("create_thread_pool_engine", "thread " + std::to_string(threads_.size() + 1),
                       [shared = shared_] { shared->serve(); });
      if (!started && threads_.size() < 2) return started.error();
      if (!started) return limit_writers(started.error());
      threads_.push_back(std::move(*started));
    }
    return ok();
  }

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    const std::lock_guard lock(shared_->mutex);
    if (shared_->closing) return 0;
    const std::size_t accepted = std::min<std::size_t>(requests.size(), options_.depth - shared_->in_flight);
    shared_->queue.insert(shared_->queue.end(), requests.begin(),
                          requests.begin() + static_cast<std::ptrdiff_t>(accepted));
    shared_->in_flight += static_cast<std::uint32_t>(accepted);
    shared_->work.notify_all();
    return accepted;
  }

  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    std::unique_lock lock(shared_->mutex);
    wait(lock, deadline, [this] { return !shared_->done.empty() || shared_->woken || shared_->closing; });
    const std::size_t count = std::min(completions.size(), shared_->done.size());
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = shared_->done.front();
      shared_->done.pop_front();
    }
    shared_->in_flight -= static_cast<std::uint32_t>(count);
    shared_->woken = false;
    return count;
  }

  void wake() noexcept override {
    const std::lock_guard lock(shared_->mutex);
    shared_->woken = true;
    shared_->completed.notify_all();
  }

  void attach(FileHandle, HostSpan) noexcept override {}
  bool detach() noexcept override { return true; }

  bool close(TimePoint deadline) noexcept override {
    {
      std::unique_lock lock(shared_->mutex);
      if (threads_.empty()) return shared_->running == 0;
      shared_->closing = true;
      for (const IoRequest& request : shared_->queue) shared_->done.push_back({request.tag, -ECANCELED});
      shared_->queue.clear();
      shared_->work.notify_all();
      wait(lock, deadline, [this] { return shared_->running == 0; });
      if (shared_->running > 0) {
        for (std::thread& thread : threads_) thread.detach();
        threads_.clear();
        return false;
      }
    }
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
    return true;
  }

  IoLimits limits() const noexcept override { return {.request_max = request_max, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override {
    const std::lock_guard lock(shared_->mutex);
    return shared_->in_flight;
  }
  const char* name() const noexcept override { return "threads"; }
  std::string notes() const override { return notes_; }

 private:
  Result<void> limit_writers(const Error& refused) {
    const std::lock_guard lock(shared_->mutex);
    shared_->writers_max = static_cast<std::uint32_t>(threads_.size() - 1);
    notes_ = "writes use only " + std::to_string(shared_->writers_max) + " of " +
             std::to_string(options_.threads) + " threads: " + refused.message();
    return ok();
  }
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, TimePoint deadline, const Ready& ready) noexcept {
    if (deadline == forever) {
      shared_->completed.wait(lock, ready);
    } else if (deadline != TimePoint::min()) {
      shared_->completed.wait_until(lock, std::chrono::steady_clock::time_point(deadline), ready);
    }
  }

  const ThreadPoolOptions options_;
  const std::shared_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
  std::string notes_;
};

}  // namespace

Result<std::unique_ptr<IoEngine>> create_thread_pool_engine(const ThreadPoolOptions& options) {
  if (options.threads == 0 || options.threads > 256) {
    return Error::invalid_argument("create_thread_pool_engine")
        .object("threads")
        .wanted("1 to 256")
        .got(options.threads);
  }
  if (options.depth == 0) {
    return Error::invalid_argument("create_thread_pool_engine").object("depth").wanted("1 or more").got(0u);
  }
  auto engine = std::make_unique<ThreadPoolEngine>(options);
  PENSTOCK_TRY(engine->start_threads());
  return engine;
}

}  // namespace penstock::tiers
