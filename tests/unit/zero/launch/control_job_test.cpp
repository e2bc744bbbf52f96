// The control channel of a job without a network: who joins, what is gathered, and which failures every rank hears of.
#include "control_job.hpp"

#include <gtest/gtest.h>

namespace penstock::zero::control::test {
namespace {

constexpr std::uint64_t seeds = 50;

bool contains(const std::string& text, const std::string& words) {
  return text.find(words) != std::string::npos;
}
std::string name_of(std::uint32_t rank) {
  return std::string("rank ").append(std::to_string(rank)).append(" (host");
}
/// Every rank that lives has failed with these words.
void expect_failure(const ControlJob& job, const std::vector<std::string>& words) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    if (!job.ranks[i].client || job.ranks[i].is_stopped) continue;
    for (const std::string& word : words)
      EXPECT_TRUE(contains(job.failure(i), word)) << i << ": " << job.failure(i);
  }
}
void expect_no_failure(const ControlJob& job) {
  for (std::size_t i = 0; i < job.ranks.size(); ++i) {
    EXPECT_EQ(job.failure(i), "") << i;
  }
}

TEST(ControlJob, BringsItsRanksTogetherAndGathersTheirBytes) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    const auto count = static_cast<std::uint32_t>(1 + seed % 5);
    ControlJob job(count, seed);
    job.bring_together();
    for (std::uint32_t rank = 0; rank < count; ++rank) {
      const auto& peers = job.ranks[rank].client->peers();
      ASSERT_TRUE(peers) << "seed " << seed;
      ASSERT_EQ(peers->size(), count);
      for (std::uint32_t i = 0; i < count; ++i)
        EXPECT_EQ((*peers)[i], (Peer{job.hello(i).machine, job.hello(i).host, job.hello(i).process}));
    }
    for (int round = 0; round < 3; ++round) {
      std::string expected;
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        const std::string text = std::to_string(round) + std::string(rank * 300, 'x');
        expected += text + ";";
        job.gather(rank, "round " + std::to_string(round), text);
        if (rank % 2 == seed % 2) job.settle();
      }
      job.settle();
      for (std::uint32_t rank = 0; rank < count; ++rank) EXPECT_EQ(job.gathered(rank), expected);
      job.pass(20s);
    }
    expect_no_failure(job);
    for (auto& rank : job.ranks) rank.client->leave();
    job.settle();
    EXPECT_TRUE(job.server.has_ended());
    for (std::size_t i = 0; i < job.ranks.size(); ++i) job.kill(i);
  }
}

TEST(ControlJob, RefusesStrangersAndGoesOn) {
  const auto bytes_of = [](const std::string& text) {
    std::vector<std::byte> bytes;
    for (const char c : text) bytes.push_back(std::byte(c));
    return bytes;
  };
  ControlJob job(3, 1);
  for (const std::size_t joined : {0u, 1u, 2u}) {
    Hello of_another_job = job.hello(0);
    of_another_job.job = "other";
    const ConnectionId another = job.connect_stranger();
    job.server.received(another, encode(of_another_job));
    job.server.received(another, encode(of_another_job));  // it is not listened to any more
    job.server.received(job.connect_stranger(), bytes_of("GET / HTTP/1.1\r\n\r\n"));
    job.server.received(job.connect_stranger(), encode(Leave{}));
    const ConnectionId torn = job.connect_stranger();
    const std::vector<std::byte> greeting = encode(job.hello(2));
    job.server.received(torn, std::span(greeting).first(20));
    job.server.closed(torn);
    job.server.closed(job.connect_stranger());
    job.connect_stranger();  // says nothing
    job.start(job.hello(static_cast<std::uint32_t>(joined)));
    job.pass(1s);
  }
  job.pass(20s);
  for (std::uint32_t rank = 0; rank < 3; ++rank) job.gather(rank, "round", "r");
  job.settle();

  EXPECT_EQ(job.gathered(1), "r;r;r;");
  expect_no_failure(job);
  for (const char* words : {"refused the connection of stranger: the process belongs to another job than the "
                            "rank 0 that it has reached, wanted \"job\", got \"other\"",
                            "does not speak the protocol", "its first message is no greeting",
                            "it ended within a message", "it sends no greeting"}) {
    EXPECT_TRUE(contains(job.messages(), words)) << words << job.messages();
  }
}

TEST(ControlJob, RefusesMoreStrangersThanItHasRoomFor) {
  ControlJob job(2, 1);
  for (int i = 0; i < 100; ++i) job.connect_stranger();
  EXPECT_TRUE(contains(job.messages(), "too many connections"));
  job.bring_together();  // the others have said nothing
  expect_no_failure(job);
  EXPECT_TRUE(job.ranks[0].client->peers());
}

TEST(ControlJob, NamesRanksThatDoNotFitTogetherOnEachOfThem) {
  const auto fails = [](auto change, const std::vector<std::string>& words) {
    for (const std::uint32_t first : {0u, 2u}) {
      ControlJob job(3, first);
      job.start(job.hello(0));
      job.start(job.hello(first == 0 ? 1 : 2));
      job.settle();
      Hello hello = job.hello(1);
      change(hello);
      job.start(hello);
      job.settle();
      expect_failure(job, words);
      EXPECT_TRUE(job.server.has_ended());
    }
  };
  fails([](Hello& hello) { hello.rank = 0, hello.process = 7; },
        {"two processes are rank 0", "rank 0 (host0, process 100) and rank 0 (host0, process 7)", "try "});
  fails([](Hello& hello) { hello.ranks = 4; },
        {"different numbers of ranks", "wanted 3, as rank 0, got 4", "rank 1", "WORLD_SIZE"});
  fails([](Hello& hello) { hello.rank = 9; }, {"wanted a rank below 3, got 9", "try "});
  fails([](Hello& hello) { hello.build = "newer"; },
        {"different builds", "wanted build, as rank 0, got newer", "rank 1 (host0, process 101)", "try "});
}

TEST(ControlJob, NamesTheRanksThatDoNotCome) {
  ControlJob job(4, 1);
  job.start(job.hello(0));
  job.start(job.hello(2));
  Hello of_another_job = job.hello(1);
  of_another_job.job = "other";
  job.server.received(job.connect_stranger(), encode(of_another_job));
  job.pass(59s);
  expect_no_failure(job);
  job.pass(20s);
  expect_failure(job, {"ranks are missing", "rank 1, rank 3 did not come in 60 s", "try ",
                       "refused the connection of stranger", "wanted \"job\", got \"other\""});
  job.kill(1);
  job.start(job.hello(1));  // too late
  job.settle();
  expect_failure(job, {"rank 1, rank 3 did not come"});
}

TEST(ControlJob, TellsEveryRankThatRank0HasFailedBeforeItWasConnected) {
  ControlJob job(3, 1);
  job.start(job.hello(1));
  job.settle();
  EXPECT_EQ(job.server.missing(), "rank 0, rank 2");

  job.server.fail_as_rank_0(Error(ErrorCode::not_found, "here").reason("its host is unknown"));
  job.settle();
  job.start(job.hello(2));  // too late
  job.settle();

  expect_failure(job, {"rank 0 has failed", "cause   its host is unknown"});
  EXPECT_TRUE(job.server.has_ended());
}

TEST(ControlJob, TellsEveryRankOfOneThatEnds) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    for (const int when : {0, 1, 2}) {
      ControlJob job(3, seed);
      job.start_all();
      const std::uint32_t dies = seed % 3;
      if (when > 0) job.settle();
      for (std::uint32_t rank = 0; when == 2 && rank < 3; ++rank) {
        if (rank != dies) job.gather(rank, "norm", "1");
      }
      if (when == 0) job.pass(1s);
      job.kill(dies);
      job.settle();
      expect_failure(job, {name_of(dies), "has ended", "try "});
    }
  }
}

TEST(ControlJob, TellsEveryRankOfOneThatIsSilent) {
  for (const std::uint32_t silent : {0u, 1u, 2u}) {
    ControlJob job(3, silent);
    job.start_all();
    job.pass(100s);
    expect_no_failure(job);
    job.ranks[silent].is_stopped = true;
    job.pass(9s);
    expect_no_failure(job);
    job.pass(6s);
    expect_failure(job, {name_of(silent), "no sign of life for 10 s"});
  }
}

TEST(ControlJob, NoticesThatRank0IsSilent) {
  ControlJob job(3, 1);
  job.bring_together();
  job.server_is_stopped = true;
  job.pass(9s);
  expect_no_failure(job);
  job.pass(6s);
  expect_failure(job, {"rank 0 (host0, process 100) has shown no sign of life for 10 s"});
}

// As a laptop that sleeps, or a job that is stopped and continued.
TEST(ControlJob, GoesOnAfterAllOfItWasStopped) {
  ControlJob job(3, 1);
  job.bring_together();
  for (int i = 0; i < 5; ++i) {
    job.clock.advance_to(job.clock.now() + std::chrono::hours(1));
    job.pass(5s);
  }
  expect_no_failure(job);
}

TEST(ControlJob, TellsEveryRankTheFirstFailure) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    ControlJob job(3, seed);
    job.bring_together();
    job.ranks[1].client->fail({ErrorCode::no_space, "rank 1: the disk is full"});
    job.settle();
    job.ranks[2].client->fail({ErrorCode::io, "later"});
    job.settle();
    expect_failure(job, {"rank 1: the disk is full"});
    EXPECT_EQ(job.ranks[2].client->failure()->code, ErrorCode::no_space);
    for (auto& rank : job.ranks) rank.client->leave();
    job.settle();
    EXPECT_TRUE(job.server.has_ended());
  }
}

TEST(ControlJob, LetsARankLeaveThatNoOtherWaitsFor) {
  ControlJob job(3, 1);
  job.bring_together();
  job.ranks[2].client->leave();
  job.settle();
  job.kill(2);
  job.pass(100s);
  expect_no_failure(job);
  job.gather(0, "norm", "1");
  job.settle();
  expect_failure(job, {"rank 2 (host1, process 102) has left, and others still wait for it"});
}

TEST(ControlJob, RefusesAProcessInThePlaceOfARankThatHasLeft) {
  ControlJob job(3, 1);
  job.bring_together();
  job.ranks[2].client->leave();
  job.settle();
  job.kill(2);
  job.settle();

  job.server.received(job.connect_stranger(), encode(job.hello(2)));
  job.pass(20s);

  EXPECT_TRUE(contains(job.messages(), "rank 2 has left the job")) << job.messages();
  EXPECT_EQ(job.failure(0), "");
  EXPECT_EQ(job.failure(1), "");
}

TEST(ControlJob, FailsWhereARankLeavesThatOthersWaitFor) {
  ControlJob job(3, 1);
  job.bring_together();
  job.gather(0, "norm", "1");
  job.settle();
  job.ranks[2].client->leave();
  job.settle();
  EXPECT_TRUE(contains(job.failure(0), "rank 2 (host1, process 102) has left"));
}

TEST(ControlJob, TellsTheRanksOfAGatheringWhoHasNotCome) {
  using Ranks = std::vector<std::uint32_t>;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    ControlJob job(4, seed);
    job.bring_together();
    const auto absent = [&job](std::uint32_t rank, Gatherer by = Gatherer::collectives) {
      return job.ranks[rank].client->absent(by);
    };
    job.gather(0, "norm", "0");
    job.gather(2, "norm", "2");
    job.gather(2, "losses", "2", Gatherer::trainer);

    job.pass(job.patience.heartbeat() + 1s);

    EXPECT_EQ(absent(0), (Ranks{1, 3}));
    EXPECT_EQ(absent(2), (Ranks{1, 3}));
    EXPECT_EQ(absent(2, Gatherer::trainer), (Ranks{0, 1, 3}));
    EXPECT_EQ(absent(1), Ranks{}) << "it is in no gathering";
    job.gather(1, "norm", "1");
    job.pass(job.patience.heartbeat() + 1s);
    EXPECT_EQ(absent(1), Ranks{3});
    job.gather(3, "norm", "3");
    job.settle();
    EXPECT_EQ(absent(1), Ranks{});
    EXPECT_EQ(job.gathered(1), "0;1;2;3;");

    for (const std::uint32_t rank : {0u, 3u}) job.ranks[rank].client->interrupt("a cause");
    job.settle();
    EXPECT_EQ(absent(2, Gatherer::trainer), Ranks{}) << "it will not complete";
    for (const std::uint32_t rank : {0u, 1u, 3u}) job.ranks[rank].client->recover();
    job.pass(job.patience.heartbeat() + 1s);
    EXPECT_EQ(absent(1), Ranks{2}) << "to the recovery";
    expect_no_failure(job);
  }
}

TEST(ControlJob, NamesRanksThatGatherDifferentThings) {
  ControlJob job(3, 1);
  job.bring_together();
  job.gather(2, "digest of step 4", "1");
  job.settle();
  job.gather(0, "norm of step 4", "1");
  job.settle();
  expect_failure(job, {"exchange different things", "wanted digest of step 4, as rank 2 (host1, process 102)",
                       "got norm of step 4, of rank 0 (host0, process 100)", "try "});
}

TEST(ControlJob, RefusesMoreBytesThanAMessageHolds) {
  ControlJob job(3, 1);
  job.bring_together();
  for (std::uint32_t rank = 0; rank < 3; ++rank) job.gather(rank, "too much", std::string(400'000, 'x'));
  job.settle();
  expect_failure(job, {"too many bytes", "too much", "wanted at most 1048576 of all ranks"});
}

// Ranks interrupt before, in and after a gathering, several at a time, and each recovers when it knows.
TEST(ControlJob, GoesOnAfterAnInterruption) {
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    constexpr std::uint32_t count = 3;
    ControlJob job(count, seed);
    penstock::test::SeededRandom random(seed);
    job.bring_together();
    for (int step = 0; step < 4; ++step) {
      std::vector<bool> recovers(count, false);
      const std::string label = "step " + std::to_string(step);
      const auto somewhat = [&] {
        for (std::uint64_t pieces = random.below(6); pieces > 0 && job.deliver(); --pieces) {
        }
      };
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        ControlClient& client = *job.ranks[rank].client;
        if (random.below(2) == 0 && !client.interruption()) job.gather(rank, label, "1");
        somewhat();
        if (rank == 0 || random.below(3) == 0) client.interrupt("rank " + std::to_string(rank));
        somewhat();
      }
      while (std::count(recovers.begin(), recovers.end(), true) < count) {
        const auto rank = static_cast<std::uint32_t>(random.below(count));
        ControlClient& client = *job.ranks[rank].client;
        if (!recovers[rank] && client.interruption()) {
          EXPECT_TRUE(contains(*client.interruption(), "rank "));
          client.recover();
          recovers[rank] = true;
        }
        (void)job.deliver();
      }
      job.settle();
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        ASSERT_FALSE(job.ranks[rank].client->interruption()) << "seed " << seed << ", rank " << rank;
        EXPECT_EQ(job.gathered(rank), "");
      }
      for (std::uint32_t rank = 0; rank < count; ++rank) {
        job.gather(rank, label + " again", "2");
        somewhat();
      }
      job.settle();
      for (std::uint32_t rank = 0; rank < count; ++rank)
        ASSERT_EQ(job.gathered(rank), "2;2;2;") << "seed " << seed;
    }
    expect_no_failure(job);
  }
}

TEST(ControlJob, GoesOnWhereAProcessComesLate) {
  ControlJob job(2, 1);
  job.bring_together();
  Hello other_world = job.hello(1), other_build = job.hello(1);
  other_world.ranks = 3;
  other_build.build = "another";
  for (const Hello& late : {job.hello(1), job.hello(0), other_world, other_build}) {
    const std::size_t number = job.start(late);
    job.settle();
    EXPECT_NE(job.failure(number), "");
    EXPECT_TRUE(contains(job.messages(), "refused"));
    job.kill(number);
  }
  for (const std::uint32_t rank : {0u, 1u}) job.gather(rank, "norm", "1");
  job.settle();
  for (const std::uint32_t rank : {0u, 1u}) EXPECT_EQ(job.gathered(rank), "1;1;");
}

TEST(ControlJob, SaysThatAnotherProgramListensOnThePort) {
  for (const bool closes : {false, true}) {
    tiers::SimClock clock;
    ControlClient client({.rank = 1, .ranks = 2}, {.join = 5s, .silence = 30s, .clock = &clock});
    client.opened();
    if (closes) client.closed("End of file");
    for (int tick = 0; tick < 60 && !client.failure(); ++tick) {
      clock.advance_to(clock.now() + 100ms);
      client.pass_time();
    }
    ASSERT_TRUE(client.failure());
    EXPECT_TRUE(contains(client.failure()->text, "does not answer as rank 0 of this job"))
        << client.failure()->text;
  }
}

TEST(ControlJob, GathersForTheTrainerBesideTheCollectives) {
  for (std::uint64_t seed = 0; seed < 50; ++seed) {
    ControlJob job(2, seed);
    job.bring_together();
    // Each rank in another order.
    job.gather(0, "norm", "0");
    job.gather(0, "loss", "a", Gatherer::trainer);
    job.gather(1, "loss", "b", Gatherer::trainer);
    job.settle();
    EXPECT_EQ(job.gathered(0), "");
    for (const std::uint32_t rank : {0u, 1u}) EXPECT_EQ(job.gathered(rank, Gatherer::trainer), "a;b;");
    job.gather(0, "stop", "c", Gatherer::trainer);
    job.gather(1, "norm", "1");
    job.settle();
    for (const std::uint32_t rank : {0u, 1u}) EXPECT_EQ(job.gathered(rank), "0;1;");
    // An interruption ends both.
    job.ranks[1].client->interrupt("the trainer has abandoned the step");
    job.settle();
    for (const auto& rank : job.ranks) rank.client->recover();
    job.settle();
    for (const std::uint32_t rank : {0u, 1u}) {
      EXPECT_EQ(job.gathered(rank, Gatherer::trainer), "");
      job.gather(rank, "loss", "d", Gatherer::trainer);
    }
    job.settle();
    EXPECT_EQ(job.gathered(1, Gatherer::trainer), "d;d;");
    expect_no_failure(job);
  }
}

TEST(ControlJob, TellsEveryRankTheCauseOfAnInterruption) {
  ControlJob job(3, 1);
  job.bring_together();
  job.ranks[1].client->interrupt("the trainer has abandoned the step");
  job.settle();
  job.ranks[2].client->interrupt("later");
  for (const auto& rank : job.ranks)
    EXPECT_EQ(rank.client->interruption(), "the trainer has abandoned the step");
}

TEST(ControlJob, TellsTheCauseThatCameFirst) {
  ControlJob job(3, 1);
  job.bring_together();
  job.server.received(job.ranks[1].connection, encode(Interrupt{.epoch = 0, .text = "first"}));
  job.server.received(job.ranks[2].connection, encode(Interrupt{.epoch = 0, .text = "second"}));
  job.settle();
  for (const auto& rank : job.ranks) EXPECT_EQ(rank.client->interruption(), "first");
}

TEST(ControlJob, FailsInAnInterruptionToo) {
  ControlJob job(3, 1);
  job.bring_together();
  job.ranks[1].client->interrupt("a reason");
  job.settle();
  job.ranks[0].client->recover();
  job.kill(2);
  job.settle();
  expect_failure(job, {"rank 2 (host1, process 102) has ended"});
}

TEST(ControlJob, DoesNotBelieveAPeerThatBreaksTheProtocol) {
  const auto fails = [](const Message& message, const char* words) {
    ControlJob job(2, 1);
    job.bring_together();
    job.server.received(job.ranks[1].connection, encode(message));
    job.settle();
    expect_failure(job, {"rank 1 (host0, process 101)", words});
  };
  fails(Welcome{}, "only rank 0 may send");
  fails(Gathered{}, "only rank 0 may send");
  fails(Hello{}, "only rank 0 may send");
  fails(Gather{.epoch = 0, .round = 1, .label = {}, .bytes = {}}, "gathers out of turn");
  fails(Gather{.epoch = 1, .round = 0, .label = {}, .bytes = {}}, "gathers out of turn");

  for (const Message& message :
       {Message(Welcome{.peers = {{}, {}}}), Message(Gathered{.epoch = 0, .round = 0, .all = {{}, {}}}),
        Message(Interrupt{.epoch = 2, .text = {}}), Message(Absent{.epoch = 1}),
        Message(Absent{.ranks = {2}}), Message(Hello{}), Message(Leave{})}) {
    ControlJob job(2, 1);
    job.bring_together();
    job.ranks[1].client->received(encode(message));
    EXPECT_TRUE(contains(job.failure(1), "rank 0 (host0, process 100) sends a message out of turn"))
        << job.failure(1);
  }
  ControlJob early(2, 1);
  early.start(early.hello(0));
  early.ranks[0].client->received(encode(Welcome{.peers = {{}}}));
  EXPECT_TRUE(contains(early.failure(0), "rank 0 sends a message out of turn"));
  ControlJob job(2, 1);
  job.bring_together();
  job.ranks[1].client->received(std::vector<std::byte>(12, std::byte{1}));
  EXPECT_TRUE(contains(job.failure(1), "cannot be understood"));
  job.server.received(job.ranks[0].connection, std::vector<std::byte>(12, std::byte{1}));
  job.settle();
  EXPECT_TRUE(contains(job.failure(0), "rank 0 (host0, process 100) sends what cannot be understood"));
}

}  // namespace
}  // namespace penstock::zero::control::test
