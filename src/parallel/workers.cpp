#include <penstock/parallel/workers.hpp>

#include "base/start_thread.hpp"

#include <tbb/blocked_range.h>
#include <tbb/global_control.h>
#include <tbb/parallel_for.h>
#include <tbb/partitioner.h>
#include <tbb/task_arena.h>
#include <algorithm>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace penstock::parallel {

namespace {
// The distribution's TBB is not instrumented, so ThreadSanitizer reports false races in it. In such builds the
// calling thread does all the work.
#ifdef __SANITIZE_THREAD__
constexpr bool may_start_threads = false;
#else
constexpr bool may_start_threads = true;
#endif

constexpr std::uint32_t threads_max = 1024;

/// Whether `count` threads can run at a time. They are ended again.
Result<void> check_threads(std::uint32_t count) {
  std::latch end(1);
  std::vector<std::thread> threads;
  Result<void> outcome;
  while (outcome && threads.size() < count) {
    auto started = start_thread(
        "Workers::create", "worker " + std::to_string(threads.size() + 1) + " of " + std::to_string(count),
        [&] { end.wait(); });
    if (started) {
      threads.push_back(std::move(*started));
    } else {
      outcome = std::move(started).error().advice(std::string("raise the limit on ") + thread_limits +
                                                  ", or lower penstock.threads");
    }
  }
  end.count_down();
  for (std::thread& thread : threads) thread.join();
  return outcome;
}
}  // namespace

struct Workers::Arena {
  explicit Arena(std::uint32_t threads) : arena(static_cast<int>(threads)) {
    // TBB has as many threads as the machine has cores, unless it is allowed more, and prints that it takes no more.
    static const tbb::global_control allowed(tbb::global_control::max_allowed_parallelism, threads_max);
  }
  ~Arena() {
    std::unique_lock lock(mutex);
    idle.wait(lock, [this] { return posted == 0; });
  }

  void post(std::function<void()> task) {
    {
      const std::lock_guard lock(mutex);
      ++posted;
    }
    arena.enqueue([this, task = std::move(task)] {
      task();
      const std::lock_guard lock(mutex);
      if (--posted == 0) idle.notify_all();
    });
  }

  tbb::task_arena arena;
  std::mutex mutex;
  std::condition_variable idle;
  std::size_t posted = 0;
};

Result<Workers> Workers::create(const Options& options) {
  if (options.threads == 0 || options.threads > threads_max) {
    return Error::invalid_argument("Workers::create")
        .object("threads")
        .wanted("1 to " + std::to_string(threads_max))
        .got(options.threads);
  }
  if (may_start_threads) PENSTOCK_TRY(check_threads(options.threads - 1));  // beside the caller's thread
  auto arena = options.threads > 1 && may_start_threads ? std::make_unique<Arena>(options.threads) : nullptr;
  return Workers(options.threads, std::move(arena));
}

Workers::Workers(std::uint32_t threads, std::unique_ptr<Arena> arena) noexcept
    : threads_(threads), arena_(std::move(arena)) {}
Workers::Workers(Workers&&) noexcept = default;
Workers& Workers::operator=(Workers&&) noexcept = default;
Workers::~Workers() = default;

void Workers::post(std::function<void()> task) {
  if (!task) return;
  if (!arena_) return task();
  arena_->post(std::move(task));
}

void Workers::run(std::size_t count, void* context, Range range) noexcept {
  if (count == 0) return;
  if (!arena_ || count == 1) return range(context, 0, count);
  arena_->arena.execute([&] {
    tbb::parallel_for(
        tbb::blocked_range<std::size_t>(0, count),
        [&](const tbb::blocked_range<std::size_t>& part) { range(context, part.begin(), part.end()); },
        tbb::static_partitioner());
  });
}

}  // namespace penstock::parallel
