// How communicators of the fake NCCL begin and end.
#include "fake_nccl/fixture.hpp"

namespace penstock::test::fake_nccl {
namespace {

class FakeNcclCommunicators : public FakeNccl {};

TEST_F(FakeNcclCommunicators, AreReadyWhenAllRanksHaveCome) {
  const ncclUniqueId id = make_id();
  ASSERT_EQ(come(0, id, 0), ncclInProgress);
  ASSERT_EQ(come(1, id, 1), ncclInProgress);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(look(0), ncclInProgress);

  ASSERT_EQ(come(2, id, 2), ncclInProgress);

  for (int r = 0; r < size(); ++r) EXPECT_EQ(wait(r), ncclSuccess);
  EXPECT_EQ(live(), 3u);
}

TEST_F(FakeNcclCommunicators, RefuseCallsUntilTheyAreReady) {
  ASSERT_EQ(come(0, make_id(), 0), ncclInProgress);

  EXPECT_EQ(gather(0), ncclInvalidArgument);
  EXPECT_EQ(look(0), ncclInvalidArgument);
  EXPECT_NE(std::string(ncclGetLastError(rank(0).comm)).find("before the previous operation"),
            std::string::npos);
}

TEST_F(FakeNcclCommunicators, RefuseTwoRanksOnOneDevice) {
  const ncclUniqueId id = make_id();
  for (int r = 0; r < size(); ++r) ASSERT_EQ(come(r, id, 0), ncclInProgress);

  for (int r = 0; r < size(); ++r) EXPECT_EQ(wait(r), ncclInvalidUsage);
  EXPECT_NE(std::string(ncclGetLastError(rank(0).comm)).find("Duplicate GPU detected"), std::string::npos);
}

TEST_F(FakeNcclCommunicators, NeedAnIdThatHasMadeNone) {
  ncclUniqueId stranger{};
  std::strcpy(stranger.internal, "stranger");
  EXPECT_EQ(come(0, stranger, 0), ncclSystemError);
  const ncclUniqueId id = make_id();
  ASSERT_EQ(come(0, id, 0), ncclInProgress);
  EXPECT_EQ(come(0, id, 0), ncclSystemError);
}

TEST_F(FakeNcclCommunicators, AreFinalisedWhenTheCollectivesOfAllRanksAreDoneAndThenDestroyed) {
  connect();
  fake_cuda::Gate gate(rank(2).stream);
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) {
    ASSERT_EQ(ncclCommFinalize(rank(r).comm), ncclInProgress);
    for (int i = 0; i < 10; ++i) ASSERT_EQ(look(r), ncclInProgress);
  }

  gate.open();

  wait_for_all();
  EXPECT_EQ(gather(0), ncclInvalidArgument);
  for (int r = 0; r < size(); ++r) EXPECT_EQ(ncclCommDestroy(rank(r).comm), ncclSuccess);
  EXPECT_EQ(live(), 0u);
}

TEST_F(FakeNcclCommunicators, ReportCallsAfterTheirEnd) {
  connect();
  ASSERT_EQ(ncclCommAbort(rank(0).comm), ncclSuccess);

  EXPECT_EQ(gather(0), ncclInvalidArgument);

  EXPECT_EQ(take_violations(), std::vector<std::string>{"ncclAllGather on a communicator that is gone"});
}

TEST_F(FakeNcclCommunicators, ReportCallsOfTwoThreadsAtATime) {
  connect();
  Hold hold("ncclCommGetAsyncError");
  std::thread other([&] { (void)look(0); });
  hold.wait_for_call();

  EXPECT_EQ(look(1), ncclSuccess);
  EXPECT_EQ(take_violations(), std::vector<std::string>{});
  EXPECT_EQ(look(0), ncclSuccess);
  EXPECT_EQ(take_violations().size(), 1u);

  { const Hold release("none"); }
  other.join();
}

}  // namespace
}  // namespace penstock::test::fake_nccl
