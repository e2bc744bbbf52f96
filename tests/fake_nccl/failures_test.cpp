// Errors, lost peers and aborts of the fake NCCL.
#include "fake_nccl/fixture.hpp"

#include <algorithm>

namespace penstock::test::fake_nccl {
namespace {

class FakeNcclFailures : public FakeNccl {
 protected:
  void SetUp() override {
    FakeNccl::SetUp();
    connect();
  }
  /// All ranks have connected, and ranks 0 and 1 are in a collective to which rank 2 does not come.
  void leave_rank_2_out() {
    for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
    wait_for_all();
    for (int r = 0; r < size(); ++r) synchronize(r);
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(gather(r), ncclInProgress);
      ASSERT_EQ(wait(r), ncclSuccess);
    }
  }
};

TEST_F(FakeNcclFailures, AnAbortEndsTheKernelsOfItsRankAlone) {
  leave_rank_2_out();

  ASSERT_EQ(ncclCommAbort(rank(0).comm), ncclSuccess);

  synchronize(0);
  EXPECT_TRUE(waits(1));
  EXPECT_EQ(live(), 2u);
}

TEST_F(FakeNcclFailures, AnAbortLeavesAnythingInTheOutputButNotInTheOwnSlot) {
  leave_rank_2_out();
  for (float& value : floats(0)) value = 5;

  ASSERT_EQ(ncclCommAbort(rank(0).comm), ncclSuccess);
  synchronize(0);

  EXPECT_EQ(floats(0)[0], 5);
  EXPECT_NE(floats(0)[4], 5);
}

TEST_F(FakeNcclFailures, AKernelThatIsAbortedBeforeItsTurnDoesNothing) {
  leave_rank_2_out();
  fake_cuda::Gate gate(rank(2).stream);
  ASSERT_EQ(gather(2), ncclInProgress);
  ASSERT_EQ(wait(2), ncclSuccess);

  ASSERT_EQ(ncclCommAbort(rank(2).comm), ncclSuccess);
  gate.open();
  synchronize(2);

  EXPECT_TRUE(waits(0));
}

TEST_F(FakeNcclFailures, AnAbortLeavesWhatWasInProgressToTheStream) {
  leave_rank_2_out();
  fake_cuda::Gate gate(rank(2).stream);
  std::ranges::fill(floats(2), 5.0f);
  ASSERT_EQ(gather(2), ncclInProgress);

  ASSERT_EQ(ncclCommAbort(rank(2).comm), ncclSuccess);

  EXPECT_EQ(floats(2)[0], 5);
  gate.open();
  synchronize(2);
  EXPECT_NE(floats(2)[0], 5);
}

TEST_F(FakeNcclFailures, ALostPeerShowsOrDoesNotAsTheTestChooses) {
  for (const bool shows : {false, true}) {
    open(3, {.lost_peers_show = shows});
    connect();
    leave_rank_2_out();

    ASSERT_EQ(ncclCommAbort(rank(2).comm), ncclSuccess);

    EXPECT_EQ(look(0), shows ? ncclRemoteError : ncclSuccess);
    EXPECT_TRUE(waits(0));
  }
}

TEST_F(FakeNcclFailures, AnInjectedErrorStaysThatOfTheCommunicator) {
  fail_call("ncclAllGather", 2, ncclSystemError);
  ASSERT_EQ(gather(0), ncclInProgress);

  EXPECT_EQ(gather(1), ncclSystemError);
  EXPECT_EQ(look(1), ncclSystemError);
  EXPECT_EQ(gather(1), ncclSystemError);
  EXPECT_EQ(look(0), ncclInProgress);
  EXPECT_EQ(calls("ncclAllGather"), 3u);
}

TEST_F(FakeNcclFailures, AnErrorInAGroupEndsItWithoutAKernel) {
  for (const char* const function : {"ncclSend", "ncclGroupEnd"}) {
    open(3);
    connect();
    fail_call(function, 1, ncclInternalError);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    (void)ncclRecv(rank(0).memory, 1, ncclFloat32, 0, rank(0).comm, rank(0).stream);
    (void)ncclSend(rank(0).memory, 1, ncclFloat32, 0, rank(0).comm, rank(0).stream);

    EXPECT_EQ(ncclGroupEnd(), ncclInternalError) << function;
    EXPECT_EQ(look(0), ncclInternalError);
    synchronize(0);
  }
}

TEST_F(FakeNcclFailures, AThreadsErrorIsReported) {
  report(1, ncclUnhandledCudaError);

  EXPECT_EQ(look(0), ncclSuccess);
  EXPECT_EQ(look(1), ncclUnhandledCudaError);
}

TEST_F(FakeNcclFailures, MemoryThatACollectiveUsesAfterItWasFreedIsReported) {
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  ASSERT_EQ(cudaFree(rank(0).memory), cudaSuccess);
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) synchronize(r);

  const auto seen = take_violations();

  ASSERT_EQ(seen.size(), 1u);
  EXPECT_NE(seen[0].find("memory that is not allocated"), std::string::npos) << seen[0];
}

}  // namespace
}  // namespace penstock::test::fake_nccl
