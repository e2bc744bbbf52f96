#include "kit/rank_scheduler.hpp"

#include <penstock/base/check.hpp>

#include <algorithm>
#include <thread>

namespace penstock::test {

namespace {
// Which rank this thread is.
thread_local std::size_t this_rank = 0;
constexpr std::size_t fruitless_max = 200'000;
}  // namespace

void RankScheduler::run(std::size_t count, const std::function<void(std::size_t)>& body) {
  live_.assign(count, true);
  turn_ = random_.below(count);
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < count; ++rank) {
    threads.emplace_back([this, rank, &body] {
      this_rank = rank;
      {
        std::unique_lock lock(mutex_);
        turn_changed_.wait(lock, [&] { return turn_ == rank; });
      }
      body(rank);
      const std::lock_guard lock(mutex_);
      live_[rank] = false;
      choose_next();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

void RankScheduler::yield(const std::function<bool(std::uint64_t)>& pass_time) {
  std::unique_lock lock(mutex_);
  fruitless_ = pass_time(random_.next()) ? 0 : fruitless_ + 1;
  const bool everyone_waits_for_ever = fruitless_ > fruitless_max;
  PENSTOCK_CHECK(!everyone_waits_for_ever);
  choose_next();
  turn_changed_.wait(lock, [&] { return turn_ == this_rank; });
}

void RankScheduler::choose_next() {
  std::vector<std::size_t> live;
  for (std::size_t rank = 0; rank < live_.size(); ++rank) {
    if (live_[rank]) live.push_back(rank);
  }
  if (live.empty()) return;
  turn_ = live[random_.below(live.size())];
  turn_changed_.notify_all();
}

}  // namespace penstock::test
