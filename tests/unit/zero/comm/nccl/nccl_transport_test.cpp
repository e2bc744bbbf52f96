// How NCCL communicators begin, fail and end.
#include "unit/zero/comm/nccl/nccl_ranks.hpp"

#include <map>

namespace penstock::zero::test {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class NcclTransport : public NcclRanks {
 protected:
  /// All ranks have connected, and are in a collective whose kernels do not end, because rank 1 is not in it: NCCL has
  /// lost what it should have enqueued.
  void lose_rank_1() {
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
    finish();
    synchronize();
    gate_.emplace(native(*rank(1).stream));
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
    finish();
  }

  std::optional<fake_cuda::Gate> gate_;
};

TEST_F(NcclTransport, TellsEveryRankThatTwoHaveOneGpuAndWhatToDo) {
  make(2, {}, /*devices=*/1);
  join_all();

  for (std::uint32_t r = 0; r < 2; ++r) {
    ASSERT_FALSE(rank(r).joined);
    EXPECT_NE(rank(r).joined.error().message().find("Duplicate GPU detected"), std::string::npos);
    EXPECT_NE(rank(r).joined.error().message().find("on device 0"), std::string::npos);
    EXPECT_NE(rank(r).joined.error().message().find("a GPU of its own (LOCAL_RANK"), std::string::npos);
  }
}

TEST_F(NcclTransport, EndsAJoinToWhichARankDoesNotComeAndNamesIt) {
  make(3);
  options_.join = milliseconds(20);
  NcclGroupOptions options = options_;
  options.clock = &Clock::steady();

  const auto alone = nccl_membership(rank(0).control, options).join(*rank(0).cuda, *rank(0).compute, needs_);

  ASSERT_FALSE(alone);
  expect_words(alone.error(), ErrorCode::deadline_exceeded,
               {"rank 1, rank 2 did not come in 20 ms", "connection"});
}

TEST_F(NcclTransport, RefusesOptionsAndGroupsThatItCannotServe) {
  make(1);
  const auto code = [&](const NcclGroupOptions& options, std::uint32_t ranks = 1) {
    const auto control = std::shared_ptr(std::make_shared<penstock::test::MemoryJob>(ranks)->control(0));
    const auto refused = nccl_membership(control, options).join(*rank(0).cuda, *rank(0).compute, needs_);
    EXPECT_EQ(control->obstacle()->code(), ErrorCode::peer_failed);  // the peers learn of it
    return refused.error().code();
  };
  EXPECT_EQ(code({.join = TimePoint::zero()}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.deadline = TimePoint::zero()}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.leave = TimePoint(-1)}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({.clock = nullptr}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({}, 65), ErrorCode::invalid_argument);
}

TEST_F(NcclTransport, ReportsAnErrorOfEachCallAndLeavesNothing) {
  const std::map<std::string, std::uint64_t> calls = {{"ncclGetUniqueId", 1},
                                                      {"ncclCommInitRankConfig", 3},
                                                      {"ncclCommGetAsyncError", 4},
                                                      {"ncclAllGather", 3},
                                                      {"ncclReduceScatter", 3},
                                                      {"ncclGroupStart", 6},
                                                      {"ncclSend", 4},
                                                      {"ncclRecv", 4},
                                                      {"ncclGroupEnd", 6}};
  for (const auto& [call, times] : calls) {
    for (std::uint64_t nth = 1; nth <= 4; ++nth) {
      make(3, {.seed = nth});
      fake_nccl::fail_call(call, nth, ncclSystemError);
      join_all();
      std::vector<Error> errors;
      for (const auto& one : ranks_) {
        if (!one->joined) errors.push_back(one->joined.error());
      }
      for (int collective = 0; collective < 3 && errors.empty(); ++collective) {
        for (std::uint32_t r = 0; r < size(); ++r) {
          const auto started =
              collective == 0
                  ? gather(r)
                  : reduce(r, DType::bf16, collective == 1 ? Reduction::native : Reduction::exact);
          ASSERT_TRUE(started);
        }
        for (bool pending = true; pending && errors.empty();) {
          pending = false;
          for (std::uint32_t r = 0; r < size(); ++r) {
            const auto outcome = communicator(r).poll();
            pending |= outcome && !*outcome;
            if (outcome) continue;
            errors.push_back(outcome.error());
            communicator(r).abort(outcome.error());  // as a hop does
            EXPECT_FALSE(communicator(r).poll());
          }
        }
        if (!errors.empty()) continue;
        for (bool pending = true; pending;) {
          pending = false;
          for (std::uint32_t r = 0; r < size(); ++r) pending |= !communicator(r).poll().value();
        }
      }
      EXPECT_EQ(errors.empty(), nth > times) << call << " " << nth;
      // Those of the peers contain it as the cause.
      for (const Error& error : errors) {
        EXPECT_NE(error.message().find(call), std::string::npos) << call << " in " << error.message();
      }
    }
  }
}

TEST_F(NcclTransport, ReportsAnErrorThatAThreadOfNcclFinds) {
  open(2);
  fake_nccl::report(1, ncclSystemError);
  ASSERT_TRUE(gather(1));

  const auto failed = communicator(1).poll();

  ASSERT_FALSE(failed);
  expect_words(failed.error(), ErrorCode::io,
               {"unhandled system error: reported by the test", "rank 1 on device 1"});
  const auto again = communicator(1).poll();
  ASSERT_FALSE(again);
  EXPECT_EQ(again.error().message(), failed.error().message());
}

TEST_F(NcclTransport, LearnsFromNcclThatAPeerIsLost) {
  open(2, {.lost_peers_show = true});
  rank(1).joined = Error(ErrorCode::failed_state, "test");  // its process has ended
  job_ = std::make_shared<penstock::test::MemoryJob>(2);

  const auto failed = communicator(0).poll();

  ASSERT_FALSE(failed);
  EXPECT_EQ(failed.error().code(), ErrorCode::peer_failed);
}

TEST_F(NcclTransport, NamesTheRanksThatDoNotComeIntoACollective) {
  open(3);
  ASSERT_TRUE(gather(0));

  EXPECT_TRUE(poll_for(0, deadline - milliseconds(100)));
  const auto late = poll_for(0, seconds(1));

  ASSERT_FALSE(late);
  expect_words(late.error(), ErrorCode::deadline_exceeded,
               {"rank 1, rank 2 did not come in 10 s", "all-gather of parameters of unit 3"});
  EXPECT_EQ(gather(2).error().code(), ErrorCode::deadline_exceeded);
}

TEST_F(NcclTransport, NamesACollectiveThatDoesNotEndAfterAllRanksHaveEnqueuedIt) {
  open(2);
  lose_rank_1();

  EXPECT_TRUE(poll_for(0, deadline - milliseconds(100)));
  const auto late = poll_for(0, seconds(1));

  ASSERT_FALSE(late);
  expect_words(late.error(), ErrorCode::deadline_exceeded,
               {"does not end", "all-gather", "unit 3", "of step 7"});
  EXPECT_EQ(communicator(1).poll().error().code(), ErrorCode::deadline_exceeded);
  ASSERT_TRUE(rank(0).stream->synchronize());  // its kernel has ended
  gate_.reset();
}

TEST_F(NcclTransport, CountsTheTimeOfACollectiveFromTheEndOfTheOneBefore) {
  open(2);
  lose_rank_1();
  const auto first = rank(0).cuda->create_event().value();
  ASSERT_TRUE(rank(0).stream->record(*first));
  fake_cuda::Gate second(native(*rank(1).stream));
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
  finish();
  EXPECT_TRUE(poll_for(0, deadline - milliseconds(100)));

  gate_.reset();
  while (!first->query().value()) std::this_thread::yield();

  EXPECT_TRUE(poll_for(0, deadline - milliseconds(100)));
  EXPECT_EQ(poll_for(0, seconds(1)).error().code(), ErrorCode::deadline_exceeded);
}

TEST_F(NcclTransport, DoesNotCountTheTimeInWhichTheProcessWasStopped) {
  open(2);
  lose_rank_1();
  EXPECT_TRUE(poll_for(0, deadline / 2));

  clock_.advance_to(clock_.now() + std::chrono::hours(5));

  EXPECT_TRUE(poll_for(0, deadline / 4));
  gate_.reset();
}

TEST_F(NcclTransport, EndsTheKernelsInFlightWhenTheCollectivesAreInterrupted) {
  open(2);
  lose_rank_1();
  std::thread([&] { communicator(1).interrupt(Error(ErrorCode::non_finite, "Trainer")); }).join();

  EXPECT_EQ(communicator(0).poll().error().code(), ErrorCode::interrupted);

  ASSERT_TRUE(rank(0).stream->synchronize());
  gate_.reset();
}

TEST_F(NcclTransport, EndsTheKernelsInFlightThoughNobodyPollsWhereARankFailsOrInterrupts) {
  for (const bool fails : {true, false}) {
    for (const std::uint32_t seed : {0u, 1u, 2u, 3u}) {
      const std::uint32_t which = seed % 2;
      open(2);
      lose_rank_1();
      ASSERT_TRUE(seed < 2 || gather(0));  // the engine gives it up without another poll

      if (fails) {
        communicator(which).abort(Error(ErrorCode::no_space, "Somewhere"));
      } else {
        communicator(which).interrupt(Error(ErrorCode::non_finite, "Trainer"));
      }

      ASSERT_TRUE(rank(0).stream->synchronize());
      gate_.reset();
    }
  }
}

TEST_F(NcclTransport, FailsTheJobThoughNobodyPollsWhereACollectiveDoesNotEnd) {
  options_.deadline = milliseconds(64);
  open(2);
  lose_rank_1();

  while (!rank(1).control->obstacle()) {
    clock_.advance_to(clock_.now() + milliseconds(1));
    std::this_thread::yield();
  }

  expect_words(*rank(1).control->obstacle(), ErrorCode::deadline_exceeded, {"does not end", "all-gather"});
  ASSERT_TRUE(rank(0).stream->synchronize());
  gate_.reset();
}

TEST_F(NcclTransport, FailsTheJobThoughNobodyPollsWhereAThreadOfNcclFindsAnError) {
  open(2);
  lose_rank_1();

  fake_nccl::report(0, ncclSystemError);

  while (!rank(1).control->obstacle()) std::this_thread::yield();
  expect_words(*rank(1).control->obstacle(), ErrorCode::peer_failed, {"rank 0", "reported by the test"});
  ASSERT_TRUE(rank(0).stream->synchronize());
  gate_.reset();
}

TEST_F(NcclTransport, NamesTheCollectiveThatAFailedPeerEnds) {
  for (const bool in_flight : {false, true}) {
    open(2);
    if (in_flight) {
      lose_rank_1();
    } else {
      ASSERT_TRUE(gather(0));
    }
    communicator(1).abort(Error(ErrorCode::no_space, "Somewhere"));

    expect_words(communicator(0).poll().error(), ErrorCode::peer_failed,
                 {"rank 1", "no space", "in      all-gather of parameters of unit 3", "step 7"});
    expect_words(reduce(0, DType::fp32, Reduction::exact).error(), ErrorCode::peer_failed,
                 {"rank 1", "in      reduce-scatter of parameters of unit 4"});
    gate_.reset();
  }
}

TEST_F(NcclTransport, RecoversOnlyAfterTheKernelsOfAllRanksHaveEnded) {
  open(2);
  lose_rank_1();
  communicator(0).interrupt(Error(ErrorCode::non_finite, "Trainer"));
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(communicator(r).start_recovery(*rank(r).stream));
  for (int turn = 0; turn < 100; ++turn) {
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_FALSE(communicator(r).poll().value());
  }

  gate_.reset();

  finish();
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
  finish();
  synchronize();
}

TEST_F(NcclTransport, RecoversOnlyAfterWhatNcclWasEnqueuingHasEnded) {
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    open(2, {.seed = seed});
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
    finish();
    synchronize();
    gate_.emplace(native(*rank(0).stream));
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
    ASSERT_TRUE(communicator(0).poll());
    communicator(0).interrupt(Error(ErrorCode::non_finite, "Trainer"));
    for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(communicator(r).start_recovery(*rank(r).stream));
    for (int turn = 0; turn < 100; ++turn) {
      for (std::uint32_t r = 0; r < size(); ++r) ASSERT_FALSE(communicator(r).poll().value()) << seed;
    }

    gate_.reset();

    finish();
  }
}

TEST_F(NcclTransport, CallsNcclOnlyFromTheThreadThatPolls) {
  open(2);
  ASSERT_TRUE(gather(0));
  const auto calls = [] {
    return fake_nccl::calls("ncclCommAbort") + fake_nccl::calls("ncclCommGetAsyncError");
  };
  fake_nccl::Hold hold("ncclCommGetAsyncError");
  std::thread polls([&] { (void)communicator(0).poll(); });
  hold.wait_for_call();
  const std::uint64_t before = calls();

  communicator(0).interrupt(Error(ErrorCode::non_finite, "Trainer"));
  communicator(0).abort(Error(ErrorCode::io, "Trainer"));

  EXPECT_EQ(calls(), before);
  { const fake_nccl::Hold release("none"); }
  polls.join();
  EXPECT_EQ(communicator(0).poll().error().code(), ErrorCode::peer_failed);
  EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), 1u);
}

TEST_F(NcclTransport, RetiresByFinalisingOnceAllRanksRetire) {
  open(3, {.seed = 1});
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
  finish();
  std::vector<std::thread> leaving;
  for (const auto& one : ranks_)
    leaving.emplace_back([&rank = *one] { rank.communicator().retire(*rank.stream); });
  for (std::thread& one : leaving) one.join();

  EXPECT_EQ(fake_nccl::calls("ncclCommDestroy"), 3u);
  EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), 0u);
  EXPECT_FALSE(rank(0).control->obstacle());
  EXPECT_FALSE(gather(0));
}

TEST_F(NcclTransport, KeepsItsCommunicatorAndFailsNoJobWhereAPeerDoesNotRetireYet) {
  for (const bool goes_on : {true, false}) {
    options_.leave = milliseconds(20);
    make(2);
    std::thread other([this] { join(0, Clock::steady()); });
    join(1, Clock::steady());
    other.join();

    communicator(1).retire(*rank(1).stream);

    EXPECT_FALSE(rank(0).control->obstacle());
    if (goes_on) {  // and is told that it is too late
      ASSERT_TRUE(gather(0));
      expect_words(communicator(0).poll().error(), ErrorCode::peer_failed, {"rank 1", "has left", "unit 3"});
    }
    rank(1).joined = Error(ErrorCode::failed_state, "test");  // its end
    EXPECT_EQ(fake_nccl::calls("ncclCommDestroy"), 0u);
    EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), goes_on ? 2u : 0u);
    rank(0).joined = Error(ErrorCode::failed_state, "test");
    EXPECT_EQ(fake_nccl::live(), goes_on ? 0u : 1u);
    fake_nccl::restart();
  }
}

TEST_F(NcclTransport, RetiresAfterAnErrorWithoutWaitingForPeersAndEndsItsKernels) {
  open(2);
  lose_rank_1();
  communicator(1).abort(Error(ErrorCode::no_space, "Somewhere"));

  communicator(0).retire(*rank(0).stream);

  ASSERT_TRUE(rank(0).stream->synchronize());
  EXPECT_EQ(fake_nccl::calls("ncclCommFinalize"), 0u);
  gate_.reset();
}

TEST_F(NcclTransport, LetsAStreamWaitForTheKernelsOfARankThatRetires) {
  open(2);
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
  finish();
  synchronize();
  const auto other = rank(0).cuda->create_stream().value();
  const auto passed = rank(0).cuda->create_event().value();
  gate_.emplace(native(*rank(0).stream));
  for (std::uint32_t r = 0; r < size(); ++r) ASSERT_TRUE(gather(r));
  finish();
  communicator(1).abort(Error(ErrorCode::no_space, "Somewhere"));

  communicator(0).retire(*other);
  ASSERT_TRUE(other->record(*passed));

  for (int turn = 0; turn < 1000; ++turn) ASSERT_FALSE(passed->query().value());
  gate_.reset();
  ASSERT_TRUE(other->synchronize());
}

TEST_F(NcclTransport, AbortsWhereFinalisingFails) {
  for (const std::string call : {"ncclCommFinalize", "ncclCommGetAsyncError"}) {
    open(1);
    fake_nccl::fail_call(call, 1, ncclSystemError);

    communicator(0).retire(*rank(0).stream);

    EXPECT_EQ(fake_nccl::calls("ncclCommAbort"), 1u) << call;
  }
}

}  // namespace
}  // namespace penstock::zero::test
