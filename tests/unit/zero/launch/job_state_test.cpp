// What callers of a control channel see, when its thread knows more than they do.
#include "zero/launch/job_state.hpp"

#include "control_job.hpp"

#include <gtest/gtest.h>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

namespace penstock::zero::control::test {
namespace {

constexpr auto collectives = Gatherer::collectives;

/// Channels without threads or sockets: what callers post runs later, and bytes arrive in pieces.
class Channels {
 public:
  Channels(std::uint32_t count, std::uint64_t seed) : random(seed), job_(count, seed), ranks_(count) {
    job_.start_all();
  }
  void run_something() {
    const std::size_t rank = random.below(ranks_.size());
    auto& posted = ranks_[rank].posted;
    if (random.below(2) == 0 && !posted.empty()) {
      posted.front()();
      posted.pop_front();
    } else {
      (void)job_.deliver();
    }
    for (std::size_t r = 0; r < ranks_.size(); ++r) (void)ranks_[r].state.publish(client(r));
  }
  void settle() {
    const auto posts = [this] {
      return std::any_of(ranks_.begin(), ranks_.end(), [](const Rank& one) { return !one.posted.empty(); });
    };
    do {
      for (int i = 0; i < 200; ++i) run_something();
    } while (posts());
    job_.settle();
    run_something();
  }
  JobState& state(std::size_t rank) { return ranks_[rank].state; }
  ControlClient& client(std::size_t rank) { return *job_.ranks[rank].client; }
  Result<void> start_gather(std::size_t rank, const std::string& text) {
    PENSTOCK_TRY(state(rank).start_gather(collectives));
    std::vector<std::byte> bytes;
    for (const char c : text) bytes.push_back(std::byte(c));
    post(rank, [this, rank, bytes] {
      if (!client(rank).interruption()) client(rank).gather(collectives, "label", bytes);
    });
    return ok();
  }
  Result<void> start_recovery(std::size_t rank) {
    PENSTOCK_TRY(state(rank).start_recovery());
    post(rank, [this, rank] { client(rank).recover(); });
    return ok();
  }
  void interrupt(std::size_t rank, const std::string& cause) {
    post(rank, [this, rank, cause] { client(rank).interrupt(cause); });
  }
  void kill(std::size_t rank) { job_.server.closed(job_.ranks[rank].connection); }

  penstock::test::SeededRandom random;

 private:
  struct Rank {
    JobState state;
    std::deque<std::function<void()>> posted;
  };
  void post(std::size_t rank, std::function<void()> call) { ranks_[rank].posted.push_back(std::move(call)); }

  ControlJob job_;
  std::vector<Rank> ranks_;
};

/// A caller that gathers until it is interrupted, recovers, and gathers again.
class Caller {
 public:
  Caller(Channels& channels, std::size_t rank) : channels_(channels), rank_(rank) {}
  void run() {
    if (phase_ == Phase::idle) {
      if (begins(channels_.start_gather(rank_, std::to_string(gathered_)))) phase_ = Phase::gathers;
    } else if (phase_ == Phase::interrupts) {
      if (const auto obstacle = channels_.state(rank_).obstacle()) (void)begins(Result<void>(*obstacle));
    } else if (phase_ == Phase::gathers) {
      EXPECT_EQ(channels_.state(rank_).start_gather(collectives).error().code(), expected_refusal());
      auto all = channels_.state(rank_).poll_gather(collectives);
      if (!begins(all) || !*all) return;
      for (const auto& bytes : **all) EXPECT_EQ(bytes, (*all)->front());
      ++gathered_;
      phase_ = Phase::idle;
    } else {
      auto recovered = channels_.state(rank_).poll_recovery();
      ASSERT_TRUE(recovered) << recovered.error().message();
      if (*recovered) phase_ = Phase::idle;
    }
  }
  /// As a trainer, which abandons nothing while it waits.
  void interrupt() {
    if (phase_ != Phase::idle) return;
    channels_.interrupt(rank_, "the cause");
    phase_ = Phase::interrupts;
  }
  [[nodiscard]] int gathered() const { return gathered_; }
  /// At the begin of each recovery: how many gatherings were complete since the last one.
  [[nodiscard]] const std::vector<int>& recoveries() const { return recoveries_; }

 private:
  enum class Phase : std::uint8_t { idle, gathers, interrupts, recovers };
  [[nodiscard]] ErrorCode expected_refusal() const {
    return channels_.state(rank_).obstacle() ? ErrorCode::interrupted : ErrorCode::failed_state;
  }
  template <class T>
  bool begins(const Result<T>& outcome) {
    if (outcome) return true;
    EXPECT_EQ(outcome.error().code(), ErrorCode::interrupted) << outcome.error().message();
    EXPECT_NE(outcome.error().message().find("cause"), std::string::npos);
    EXPECT_TRUE(channels_.start_recovery(rank_));
    EXPECT_EQ(channels_.start_recovery(rank_).error().code(), ErrorCode::failed_state);
    recoveries_.push_back(std::exchange(gathered_, 0));
    phase_ = Phase::recovers;
    return false;
  }

  Channels& channels_;
  const std::size_t rank_;
  Phase phase_ = Phase::idle;
  int gathered_ = 0;
  std::vector<int> recoveries_;
};

TEST(JobState, TakesCallersThroughInterruptionsThatFollowEachOther) {
  constexpr std::size_t count = 3;
  std::size_t recoveries = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    Channels channels(count, seed);
    channels.settle();
    std::vector<Caller> callers;
    for (std::size_t rank = 0; rank < count; ++rank) callers.emplace_back(channels, rank);
    for (int turn = 0; turn < 600; ++turn) {
      if (turn < 400 && channels.random.below(20) == 0) callers[channels.random.below(count)].interrupt();
      callers[channels.random.below(count)].run();
      channels.run_something();
    }
    for (int turn = 0; turn < 20'000 && callers[0].gathered() < 3; ++turn) {
      callers[channels.random.below(count)].run();
      channels.run_something();
    }
    EXPECT_GE(callers[0].gathered(), 3) << "seed " << seed;
    // What is complete on one rank is complete on all.
    for (const Caller& caller : callers)
      EXPECT_EQ(caller.recoveries(), callers[0].recoveries()) << "seed " << seed;
    recoveries += callers[0].recoveries().size();
  }
  EXPECT_GT(recoveries, 200u);
}

// They come in one piece of the stream.
TEST(JobState, GivesWhatWasCompleteBeforeAnInterruption) {
  Channels channels(1, 1);
  channels.settle();
  ControlClient& client = channels.client(0);
  JobState state;
  (void)state.publish(client);
  ASSERT_TRUE(state.start_gather(collectives));
  client.gather(collectives, "label", {});
  client.received(encode(Gathered{.epoch = 0, .round = 0, .all = {{std::byte(7)}}}));
  client.received(encode(Interrupt{.epoch = 1, .text = "the cause"}));

  EXPECT_TRUE(state.publish(client));

  ASSERT_TRUE(state.obstacle());
  EXPECT_EQ(state.poll_gather(collectives).value()->front().front(), std::byte(7));
  EXPECT_FALSE(state.poll_gather(collectives));
}

// Its thread did not run in the meantime.
TEST(JobState, SaysThatAGatheringWasInterruptedAfterTheRecoveryToo) {
  Channels channels(2, 1);
  channels.settle();
  constexpr auto trainer = Gatherer::trainer;
  ASSERT_TRUE(channels.state(0).start_gather(trainer));
  channels.interrupt(1, "the cause");
  channels.settle();
  for (const std::size_t rank : {0u, 1u}) ASSERT_TRUE(channels.start_recovery(rank));
  channels.settle();
  ASSERT_FALSE(channels.state(0).obstacle());

  EXPECT_TRUE(channels.state(0).has_gathered(trainer));
  EXPECT_EQ(channels.state(0).poll_gather(trainer).error().code(), ErrorCode::interrupted);
  EXPECT_TRUE(channels.state(0).start_gather(trainer));
}

TEST(JobState, SaysWhenCallersSeeSomethingNew) {
  Channels channels(1, 1);
  channels.settle();
  JobState state;
  EXPECT_TRUE(state.publish(channels.client(0)));  // the peers
  EXPECT_EQ(state.peers()->size(), 1u);
  EXPECT_FALSE(state.publish(channels.client(0)));
  channels.client(0).interrupt("the cause");
  EXPECT_TRUE(state.publish(channels.client(0)));
  EXPECT_TRUE(state.has_gathered(collectives));
  EXPECT_FALSE(state.publish(channels.client(0)));
  channels.client(0).fail(failure_of(Error::invalid_argument("test")));
  EXPECT_TRUE(state.publish(channels.client(0)));
  EXPECT_EQ(state.obstacle()->code(), ErrorCode::invalid_argument);
  EXPECT_FALSE(state.publish(channels.client(0)));
}

// The end of a recovery and the next interruption come in one piece of the stream.
TEST(JobState, ShowsAnInterruptionThatComesWithTheEndOfARecovery) {
  Channels channels(1, 1);
  channels.settle();
  ControlClient& client = channels.client(0);
  JobState state;
  client.interrupt("the first");
  (void)state.publish(client);
  ASSERT_TRUE(state.start_recovery());
  client.recover();
  client.received(encode(Interrupt{.epoch = 1, .text = "the first"}));
  client.received(encode(Gathered{.epoch = 1, .round = 0, .all = {{}}}));
  client.interrupt("the second");

  EXPECT_TRUE(state.publish(client));

  EXPECT_TRUE(state.poll_recovery().value());
  ASSERT_TRUE(state.obstacle());
  EXPECT_NE(state.obstacle()->message().find("the second"), std::string::npos);
}

TEST(JobState, DropsBytesThatNoCallerTookBeforeAnInterruption) {
  Channels channels(1, 1);
  channels.settle();
  ASSERT_TRUE(channels.start_gather(0, "1"));
  channels.settle();
  channels.interrupt(0, "the cause");
  channels.settle();
  ASSERT_TRUE(channels.start_recovery(0));
  channels.settle();
  ASSERT_TRUE(channels.state(0).poll_recovery().value());

  ASSERT_TRUE(channels.start_gather(0, "2"));
  EXPECT_FALSE(channels.state(0).poll_gather(collectives).value());
  channels.settle();

  EXPECT_EQ(channels.state(0).poll_gather(collectives).value()->front().front(), std::byte('2'));
}

TEST(JobState, RefusesARecoveryWithoutAnInterruptionAndAfterAFailure) {
  Channels channels(2, 1);
  channels.settle();
  EXPECT_EQ(channels.start_recovery(0).error().code(), ErrorCode::failed_state);
  EXPECT_FALSE(channels.state(0).poll_recovery().value());
  channels.interrupt(0, "the cause");
  channels.settle();
  ASSERT_TRUE(channels.start_recovery(0));
  channels.kill(1);
  channels.settle();
  EXPECT_EQ(channels.state(0).poll_recovery().error().code(), ErrorCode::peer_failed);
  EXPECT_EQ(channels.start_recovery(0).error().code(), ErrorCode::peer_failed);
  EXPECT_EQ(channels.start_gather(0, "").error().code(), ErrorCode::peer_failed);
}

}  // namespace
}  // namespace penstock::zero::control::test
