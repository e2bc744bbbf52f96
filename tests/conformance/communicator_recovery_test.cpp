// What every communicator does when a rank gives up the collectives in flight.
#include "conformance/communicator_conformance.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>
#include <vector>

namespace penstock::zero::test {
namespace {

class CommunicatorRecovery : public CommunicatorConformance {
 protected:
  Result<void> start(std::uint32_t r, bool gather) {
    Communicator& communicator = *rank(r).communicator;
    if (gather) return communicator.start_all_gather(*rank(r).stream, flat(r).bytes, {});
    return communicator.start_reduce_scatter(*rank(r).stream, std::array{flat(r)}, Reduction::exact, {});
  }
  /// Some ranks get some way into a collective; not all of them start it. In a process it may be interrupted already.
  void begin_a_collective() {
    gathers_ = random_.below(2) == 0;
    absent_ = static_cast<std::uint32_t>(random_.below(size()));
    started_.assign(size(), std::nullopt);
    for (std::uint32_t r = 0; r < size(); ++r) {
      if (r == absent_ || random_.below(4) == 0 || !is_here(r)) continue;
      started_[r] = start(r, gathers_);
      ASSERT_TRUE(*started_[r] || is_process());
    }
    for (std::uint64_t turns = random_.below(10); turns > 0; --turns) run_something();
  }
  /// Every rank is in the collective, and some may have completed it.
  void begin_a_collective_everywhere() {
    const bool gather = random_.below(2) == 0;
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(start(r, gather));
    for (std::uint64_t turns = random_.below(10); turns > 0; --turns) run_something();
  }
  void run_something() {
    const auto r = static_cast<std::uint32_t>(random_.below(size()));
    const bool runs = random_.below(2) == 0;
    if (!is_here(r)) return;
    if (runs) {
      (void)rank(r).run_one();
    } else {
      (void)rank(r).communicator->poll();
    }
  }
  void recover_all() {
    for (const std::uint32_t r : here()) {
      ASSERT_TRUE(rank(r).communicator->start_recovery(*rank(r).stream));
      if (order_.below(2) == 0) (void)rank(r).run_one();
      if (r + 1 < size() && !is_process()) {
        const auto waits = rank(r).communicator->poll();
        ASSERT_TRUE(waits) << waits.error().message();
        ASSERT_FALSE(*waits);
      }
    }
    finish();
  }
  void expect_a_gather_works(std::uint64_t generation) {
    fill_own_slots(generation);
    for (const std::uint32_t r : here()) ASSERT_TRUE(start(r, true));
    finish();
    drain();
    for (const std::uint32_t r : here()) {
      for (std::uint32_t s = 0; s < size(); ++s) {
        ASSERT_FALSE((Pattern{.tensor = s, .generation = generation}.first_difference(bytes(slot(r, s)))));
      }
    }
  }

  bool gathers_ = false;
  std::uint32_t absent_ = 0;
  std::vector<std::optional<Result<void>>> started_;
};

/// What one rank cannot do.
class CommunicatorRecoveryPeers : public CommunicatorRecovery {};

TEST_P(CommunicatorRecovery, EndsTheCollectivesOfAllRanksWithTheCauseUntilAllHaveRecovered) {
  for (std::uint64_t seed = 0; seed < seeds(100); ++seed) {
    open(seed);
    for (std::uint64_t round = 0; round < 3; ++round) {
      begin_a_collective();
      const auto chosen = static_cast<std::uint32_t>(random_.below(size()));
      // Of processes, the others may start what they have not started yet, and must not complete it.
      const std::uint32_t gives_up = is_process() ? absent_ : chosen;
      if (is_here(gives_up)) {
        rank(gives_up).communicator->interrupt(
            Error(ErrorCode::non_finite, "Trainer").reason("the loss is NaN"));
      }
      for (const std::uint32_t r : here()) {
        const Error told = error_of(r, started_[r] ? *started_[r] : start(r, gathers_));
        ASSERT_EQ(told.code(), ErrorCode::interrupted) << told.message();
        EXPECT_NE(told.message().find("rank " + std::to_string(gives_up)), std::string::npos);
        EXPECT_NE(told.message().find("the loss is NaN"), std::string::npos);
        if (started_[r] && *started_[r]) {
          EXPECT_EQ(rank(r).communicator->poll().error().code(), ErrorCode::interrupted);
        }
      }
      recover_all();
      expect_a_gather_works(seed * 10 + round);
      transport().meet();  // the next interruption also ends a gather that only peers have completed
    }
  }
}

TEST_P(CommunicatorRecovery, LetsNoPeerReadARanksMemoryAfterItsStreamHasPassedTheRecovery) {
  if (is_process()) GTEST_SKIP() << "needs the memory of every rank";
  for (std::uint64_t seed = 0; seed < seeds(200); ++seed) {
    open(seed);
    fill_own_slots(1);
    begin_a_collective_everywhere();
    rank(0).communicator->interrupt(Error(ErrorCode::io, "Trainer"));
    recover_all();
    const auto r = static_cast<std::uint32_t>(random_.below(size()));
    const auto passed = rank(r).device->create_event().value();
    ASSERT_TRUE(rank(r).stream->record(*passed));
    while (!passed->query().value()) {
      bool ran = rank(r).run_one();
      for (std::uint32_t other = 0; !ran && other < size(); ++other) ran = rank(other).run_one();
      ASSERT_TRUE(ran);
    }
    const HostSpan own = bytes(slot(r, r));
    std::memset(own.data(), 0xee, own.size().value());
    drain();
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      const HostSpan copy = bytes(slot(peer, r));
      EXPECT_TRUE(peer == r || std::memcmp(copy.data(), own.data(), own.size().value()) != 0)
          << "rank " << peer << " has read what rank " << r << " wrote after the recovery, seed " << seed;
    }
  }
}

// Ranks that have completed the exchange of a step's outcome apply it: no other may treat it as interrupted.
TEST_P(CommunicatorRecoveryPeers, CompletesAnExchangeOnEachRankWhereItHasOnOne) {
  for (std::uint64_t seed = 0; seed < seeds(50); ++seed) {
    open(seed);
    std::vector<std::vector<std::byte>> all(size(), std::vector<std::byte>(size()));
    const std::vector<std::byte> mine(1, std::byte(7));
    for (const std::uint32_t r : here()) {
      ASSERT_TRUE(rank(r).communicator->start_exchange(ConstHostSpan(std::span(mine)),
                                                       HostSpan(std::span(all[r])), {.step = 1}));
    }
    const auto first = static_cast<std::uint32_t>(random_.below(size()));
    std::vector<Result<bool>> done(size(), Result<bool>(false));
    const auto poll = [&](std::uint32_t r) {
      if (done[r] && !*done[r]) done[r] = rank(r).communicator->poll();
    };
    while (is_here(first) && done[first] && !*done[first])
      poll(is_process() ? first : static_cast<std::uint32_t>(random_.below(size())));
    if (is_here(first)) rank(first).communicator->interrupt(Error(ErrorCode::io, "Trainer"));
    for (const std::uint32_t r : here()) {
      while (done[r] && !*done[r]) poll(r);
      ASSERT_TRUE(done[r]) << "seed " << seed << ", rank " << r << ": " << done[r].error().message();
      EXPECT_EQ(all[r], std::vector<std::byte>(size(), std::byte(7)));
      EXPECT_EQ(error_of(r, start(r, true)).code(), ErrorCode::interrupted);
    }
    recover_all();
    expect_a_gather_works(seed);
    transport().meet();
  }
}

TEST_P(CommunicatorRecoveryPeers, FailsWhenAPeerFailsInsteadOfRecovering) {
  if (is_here(1)) rank(1).communicator->interrupt(Error(ErrorCode::io, "Trainer"));
  if (is_here(0)) {
    EXPECT_EQ(error_of(0, start(0, true)).code(), ErrorCode::interrupted);
    ASSERT_TRUE(rank(0).communicator->start_recovery(*rank(0).stream));
    EXPECT_FALSE(rank(0).communicator->poll().value());
  }
  transport().meet();

  if (is_here(1)) rank(1).communicator->abort(Error(ErrorCode::no_space, "Somewhere"));

  if (is_here(0)) {
    EXPECT_EQ(error_of(0, ok()).code(), ErrorCode::peer_failed);
  }
}

TEST_P(CommunicatorRecoveryPeers, WakesThePeers) {
  if (is_process()) GTEST_SKIP() << "needs all ranks in one process";
  int woken = 0;
  rank(0).communicator->set_wake([&woken] { ++woken; });
  rank(1).communicator->interrupt(Error(ErrorCode::io, "Trainer"));
  EXPECT_EQ(woken, 1);
  rank(1).communicator->interrupt(Error(ErrorCode::io, "Trainer"));  // the first cause stays
  EXPECT_EQ(woken, 1);

  // Rank 0 sleeps whenever it has nothing to do.
  ASSERT_TRUE(rank(0).communicator->start_recovery(*rank(0).stream));
  bool recovered = rank(0).communicator->poll().value();
  int seen = woken;
  for (std::uint32_t r = 1; r < size(); ++r) {
    ASSERT_TRUE(rank(r).communicator->start_recovery(*rank(r).stream));
  }
  for (int turn = 0; turn < 100 && !recovered; ++turn) {
    if (woken != seen || (!transport().wakes && turn % 2 == 0)) {
      seen = woken;
      recovered = rank(0).communicator->poll().value();
    } else {
      (void)rank(1 + static_cast<std::uint32_t>(turn / 2) % (size() - 1)).communicator->poll();
    }
  }
  EXPECT_TRUE(recovered);
  rank(0).communicator->set_wake({});
}

INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorRecovery, settings_of(1), testing::PrintToStringParamName());
INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorRecoveryPeers, settings_of(2),
                         testing::PrintToStringParamName());
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(CommunicatorRecoveryPeers);

}  // namespace
}  // namespace penstock::zero::test
