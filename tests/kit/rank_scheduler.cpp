#include "kit/rank_scheduler.hpp"

#include <penstock/base/check.hpp>

#include <pthread.h>
#include <sched.h>
#include <algorithm>
#include <thread>

namespace penstock::test {

namespace {
// Which rank this thread is.
thread_local std::size_t this_rank = 0;
constexpr std::size_t fruitless_max = 200'000;

/// In a virtual machine it takes several times as long to wake a thread on another processor.
void stay_on(int processor) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(static_cast<std::size_t>(processor), &one);
  (void)::pthread_setaffinity_np(::pthread_self(), sizeof(one), &one);
}
}  // namespace

void RankScheduler::run(std::size_t count, const std::function<void(std::size_t)>& body) {
  live_.assign(count, true);
  turns_.clear();
  for (std::size_t rank = 0; rank < count; ++rank) turns_.emplace_back(0);
  const std::size_t first = random_.below(count);
  const int processor = ::sched_getcpu();
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([this, rank, processor, &body] {
      if (processor >= 0) stay_on(processor);
      this_rank = rank;
      turns_[rank].acquire();
      body(rank);
      live_[rank] = false;
      if (const auto next = choose_next()) turns_[*next].release();
    });
  }
  turns_[first].release();
  for (std::thread& thread : threads) thread.join();
}

void RankScheduler::yield(const std::function<bool(std::uint64_t)>& pass_time) {
  fruitless_ = pass_time(random_.next()) ? 0 : fruitless_ + 1;
  const bool everyone_waits_for_ever = fruitless_ > fruitless_max;
  PENSTOCK_CHECK(!everyone_waits_for_ever);
  const std::size_t next = choose_next().value();  // this one is live
  if (next == this_rank) return;
  turns_[next].release();
  turns_[this_rank].acquire();
}

std::optional<std::size_t> RankScheduler::choose_next() {
  const auto live = static_cast<std::size_t>(std::count(live_.begin(), live_.end(), true));
  if (live == 0) return std::nullopt;
  std::size_t ahead = random_.below(live);  // of the live ones
  for (std::size_t rank = 0;; ++rank) {
    if (live_[rank] && ahead-- == 0) return rank;
  }
}

}  // namespace penstock::test
