#pragma once

#include "kit/seeded_random.hpp"

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <semaphore>
#include <vector>

namespace penstock::test {

/// Runs the bodies of several ranks one at a time, in an order chosen by a seed: a rank runs until it calls yield();
/// then the scheduler resumes a rank that has not ended.
///
/// Each body has a thread of its own and exactly one of them runs, so that blocking code can be simulated.
class RankScheduler {
 public:
  explicit RankScheduler(std::uint64_t seed) : random_(seed) {}

  /// Runs body(0) … body(count - 1) to their ends.
  void run(std::size_t count, const std::function<void(std::size_t rank)>& body);

  /// Called by the running body: resumes another body or the same one. First calls `pass_time`, which executes one due
  /// event, selected by its argument, and returns false if none is due. If all bodies yield and no event is due for
  /// long, they are deadlocked and the program aborts.
  void yield(const std::function<bool(std::uint64_t choice)>& pass_time);

 private:
  /// The rank whose turn is next; none if all bodies have ended.
  std::optional<std::size_t> choose_next();

  // Used by the one thread that runs; a semaphore hands them over.
  SeededRandom random_;
  std::vector<bool> live_;
  std::size_t fruitless_ = 0;
  std::deque<std::binary_semaphore> turns_;  ///< of each rank: only the one whose turn it is wakes
};

}  // namespace penstock::test
