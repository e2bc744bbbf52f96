#include <penstock/tiers/thread_pool_engine.hpp>

#include <unistd.h>
#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace penstock::tiers {

namespace {

std::int64_t run(const IoRequest& request) noexcept {
  const int fd = static_cast<int>(request.file);
  const auto offset = static_cast<off_t>(request.offset.value());
  ssize_t result = 0;
  switch (request.operation) {
    case IoOperation::read:
      result = ::pread(fd, request.buffer.data(), request.buffer.size().value(), offset);
      break;
    case IoOperation::write:
      result = ::pwrite(fd, request.buffer.data(), request.buffer.size().value(), offset);
      break;
    case IoOperation::flush: result = ::fdatasync(fd); break;
  }
  return result >= 0 ? result : -errno;
}

class ThreadPoolEngine final : public IoEngine {
 public:
  explicit ThreadPoolEngine(const ThreadPoolOptions& options) : options_(options) {}

  ~ThreadPoolEngine() override { ThreadPoolEngine::close(); }

  /// With fewer threads than asked for it works too, with none it does not.
  Result<void> start_threads() {
    try {
      while (threads_.size() < options_.threads) threads_.emplace_back([this] { serve(); });
    } catch (const std::system_error& refused) {
      if (threads_.empty()) {
        return Error::from_errno("create_thread_pool_engine", refused.code().value()).object("a thread");
      }
      notes_ = "only " + std::to_string(threads_.size()) + " of " + std::to_string(options_.threads) +
               " threads: " + refused.code().message();
    }
    return ok();
  }

  std::size_t submit(std::span<const IoRequest> requests) noexcept override {
    const std::lock_guard lock(mutex_);
    if (closing_) return 0;
    const std::size_t accepted = std::min<std::size_t>(requests.size(), options_.depth - in_flight_);
    queue_.insert(queue_.end(), requests.begin(), requests.begin() + static_cast<std::ptrdiff_t>(accepted));
    in_flight_ += static_cast<std::uint32_t>(accepted);
    work_.notify_all();
    return accepted;
  }

  std::size_t reap(std::span<IoCompletion> completions, TimePoint deadline) noexcept override {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return !done_.empty() || woken_ || closing_; };
    if (deadline == forever) {
      completed_.wait(lock, ready);
    } else if (deadline != TimePoint::min()) {
      completed_.wait_until(lock, std::chrono::steady_clock::time_point(deadline), ready);
    }
    const std::size_t count = std::min(completions.size(), done_.size());
    for (std::size_t i = 0; i < count; ++i) {
      completions[i] = done_.front();
      done_.pop_front();
    }
    in_flight_ -= static_cast<std::uint32_t>(count);
    woken_ = false;
    return count;
  }

  void wake() noexcept override {
    const std::lock_guard lock(mutex_);
    woken_ = true;
    completed_.notify_all();
  }

  void attach(FileHandle, HostSpan) noexcept override {}

  void close() noexcept override {
    {
      const std::lock_guard lock(mutex_);
      if (closing_) return;
      closing_ = true;
      for (const IoRequest& request : queue_) done_.push_back({request.tag, -ECANCELED});
      queue_.clear();
      work_.notify_all();
    }
    for (std::thread& thread : threads_) thread.join();
  }

  IoLimits limits() const noexcept override { return {.request_max = 1_GiB, .depth = options_.depth}; }
  std::uint32_t in_flight() const noexcept override {
    const std::lock_guard lock(mutex_);
    return in_flight_;
  }
  const char* name() const noexcept override { return "threads"; }
  std::string notes() const override { return notes_; }

 private:
  void serve() noexcept {
    std::unique_lock lock(mutex_);
    while (true) {
      work_.wait(lock, [this] { return !queue_.empty() || closing_; });
      if (queue_.empty()) return;
      const IoRequest request = queue_.front();
      queue_.pop_front();
      lock.unlock();
      const std::int64_t result = run(request);
      lock.lock();
      done_.push_back({request.tag, result});
      completed_.notify_all();
    }
  }

  const ThreadPoolOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable work_, completed_;
  std::deque<IoRequest> queue_;
  std::deque<IoCompletion> done_;
  std::uint32_t in_flight_ = 0;
  bool closing_ = false, woken_ = false;
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
