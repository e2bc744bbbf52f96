// What every communicator does when a rank gives up the collectives in flight.
#include "conformance/communicator_conformance.hpp"

#include <algorithm>
#include <array>
#include <cstring>

namespace penstock::zero::test {
namespace {

class CommunicatorRecovery : public CommunicatorConformance {
 protected:
  Result<void> start(std::uint32_t r, bool gather) {
    Communicator& communicator = *rank(r).communicator;
    if (gather) return communicator.start_all_gather(*rank(r).stream, flat(r).bytes, {});
    return communicator.start_reduce_scatter(*rank(r).stream, std::array{flat(r)}, Reduction::exact, {});
  }
  /// Some ranks get some way into a collective; not all of them start it.
  void begin_a_collective() {
    const bool gather = random_.below(2) == 0;
    const auto absent = static_cast<std::uint32_t>(random_.below(size()));
    for (std::uint32_t r = 0; r < size(); ++r) {
      if (r != absent && random_.below(4) != 0) {
        ASSERT_TRUE(start(r, gather));
      }
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
    if (random_.below(2) == 0) {
      (void)rank(r).run_one();
    } else {
      (void)rank(r).communicator->poll();
    }
  }
  void recover_all() {
    for (std::uint32_t r = 0; r < size(); ++r) {
      ASSERT_TRUE(rank(r).communicator->start_recovery(*rank(r).stream));
      if (random_.below(2) == 0) (void)rank(r).run_one();
      if (r + 1 < size()) {
        const auto waits = rank(r).communicator->poll();
        ASSERT_TRUE(waits) << waits.error().message();
        ASSERT_FALSE(*waits);
      }
    }
    finish();
  }
  void expect_a_gather_works(std::uint64_t generation) {
    fill_own_slots(generation);
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(start(r, true));
    finish();
    drain();
    for (std::uint32_t r = 0; r < size(); ++r) {
      for (std::uint32_t s = 0; s < size(); ++s) {
        ASSERT_FALSE((Pattern{.tensor = s, .generation = generation}.first_difference(bytes(slot(r, s)))));
      }
    }
  }
};

TEST_P(CommunicatorRecovery, EndsTheCollectivesOfAllRanksWithTheCauseUntilAllHaveRecovered) {
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    open(seed);
    for (std::uint64_t round = 0; round < 3; ++round) {
      begin_a_collective();
      const auto gives_up = static_cast<std::uint32_t>(random_.below(size()));
      rank(gives_up).communicator->interrupt(
          Error(ErrorCode::non_finite, "Trainer").reason("the loss is NaN"));
      for (std::uint32_t r = 0; r < size(); ++r) {
        auto told = rank(r).communicator->poll();
        if (told) {
          told = Result<bool>(tl::make_unexpected(start(r, true).error()));  // it was not in the collective
        } else {
          EXPECT_EQ(rank(r).communicator->poll().error().code(), ErrorCode::interrupted);
        }
        ASSERT_EQ(told.error().code(), ErrorCode::interrupted);
        EXPECT_NE(told.error().message().find("rank " + std::to_string(gives_up)), std::string::npos);
        EXPECT_NE(told.error().message().find("the loss is NaN"), std::string::npos);
      }
      recover_all();
      expect_a_gather_works(seed * 10 + round);
    }
  }
}

TEST_P(CommunicatorRecovery, LetsNoPeerReadARanksMemoryAfterItsStreamHasPassedTheRecovery) {
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
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

TEST_P(CommunicatorRecovery, FailsWhenAPeerFailsInsteadOfRecovering) {
  if (size() == 1) GTEST_SKIP() << "one rank has no peers";
  rank(1).communicator->interrupt(Error(ErrorCode::io, "Trainer"));
  ASSERT_TRUE(rank(0).communicator->start_recovery(*rank(0).stream));
  EXPECT_FALSE(rank(0).communicator->poll().value());

  rank(1).communicator->abort(Error(ErrorCode::no_space, "Somewhere"));

  EXPECT_EQ(rank(0).communicator->poll().error().code(), ErrorCode::peer_failed);
}

TEST_P(CommunicatorRecovery, WakesThePeers) {
  if (size() == 1) GTEST_SKIP() << "one rank has no peers";
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

INSTANTIATE_TEST_SUITE_P(Everywhere, CommunicatorRecovery, every_setting, testing::PrintToStringParamName());

}  // namespace
}  // namespace penstock::zero::test
