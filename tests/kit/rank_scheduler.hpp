#pragma once

#include "kit/seeded_random.hpp"

#include <condition_variable>
#include <functional>
#include <mutex>
#include <vector>

namespace penstock::test {

/// Runs the bodies of several ranks one at a time, in an order that a seed chooses: a rank runs until it
/// calls yield(), and then a rank that has not ended gets its turn.
///
/// Each body has a thread of its own and exactly one of them runs, so that blocking code can be simulated.
class RankScheduler {
 public:
  explicit RankScheduler(std::uint64_t seed) : random_(seed) {}

  /// Runs body(0) … body(count - 1) to their ends.
  void run(std::size_t count, const std::function<void(std::size_t rank)>& body);

  /// Called by the running body: lets another go on, or itself. `pass_time` is called first and does one
  /// thing that is due somewhere, chosen by the number it is given; it returns false when nothing is. When
  /// nothing is due for long while everyone yields, the bodies are deadlocked and the program aborts.
  void yield(const std::function<bool(std::uint64_t choice)>& pass_time);

 private:
  void choose_next();

  SeededRandom random_;
  std::mutex mutex_;
  std::condition_variable turn_changed_;
  std::vector<bool> live_;
  std::size_t turn_ = 0;
  std::size_t fruitless_ = 0;
};

}  // namespace penstock::test
