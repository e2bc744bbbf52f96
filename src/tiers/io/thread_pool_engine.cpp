#include "tiers/io/thread_pool_engine.hpp"

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <system_error>
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
  std::mutex mutex;
  std::condition_variable work, completed;
  std::pmr::unsynchronized_pool_resource nodes;
  std::pmr::deque<IoRequest> queue{&nodes};
  std::pmr::deque<IoCompletion> done{&nodes};
  std::uint32_t in_flight = 0, running = 0;
  bool closing = false, woken = false;

  void serve() noexcept {
    std::unique_lock lock(mutex);
    while (true) {
      work.wait(lock, [this] { return !queue.empty() || closing; });
      if (queue.empty()) return;
      const IoRequest request = queue.front();
      queue.pop_front();
      ++running;
      lock.unlock();
      const std::int64_t result = run(request);
      lock.lock();
      --running;
      done.push_back({request.tag, result});
      completed.notify_all();
    }
  }
};

class ThreadPoolEngine final : public IoEngine {
 public:
  explicit ThreadPoolEngine(const ThreadPoolOptions& options) : options_(options) {}

  ~ThreadPoolEngine() override { (void)ThreadPoolEngine::close(forever); }

  /// Works with fewer threads than requested, but at least one.
  Result<void> start_threads() {
    try {
      while (threads_.size() < options_.threads) {
        threads_.emplace_back([shared = shared_] { shared->serve(); });
      }
    } catch (const std::system_error& refused) {
      if (threads_.empty()) {
        return Error::from_errno("create_thread_pool_engine", refused.code().value())
            .object("a thread")
            .advice("raise the limit on processes and threads (ulimit -u, pids.max of the container)");
      }
      notes_ = "only " + std::to_string(threads_.size()) + " of " + std::to_string(options_.threads) +
               " threads: " + refused.code().message();
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
  template <class Ready>
  void wait(std::unique_lock<std::mutex>& lock, TimePoint deadline, const Ready& ready) noexcept {
    if (deadline == forever) {
      shared_->completed.wait(lock, ready);
    } else if (deadline != TimePoint::min()) {
      shared_->completed.wait_until(lock, std::chrono::steady_clock::time_point(deadline), ready);
    }
  }

  const ThreadPoolOptions options_;
  const std::shared_ptr<Shared> shared_ = std::make_shared<Shared>();
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
