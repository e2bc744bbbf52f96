#include "fake_nccl/fixture.hpp"

#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace penstock::test::fake_nccl {
namespace {

class Windows : public FakeNccl {
 protected:
  void TearDown() override {
    for (void* const arena : arenas_) {
      if (arena == nullptr) continue;
      EXPECT_EQ(ncclMemFree(arena), ncclSuccess);
    }
    FakeNccl::TearDown();
  }
  void allocate(std::size_t size = memory_bytes) {
    arenas_.assign(static_cast<std::size_t>(this->size()), nullptr);
    windows_.assign(arenas_.size(), nullptr);
    for (int r = 0; r < this->size(); ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(ncclMemAlloc(&arena(r), size), ncclSuccess);
    }
  }
  void*& arena(int r) { return arenas_[static_cast<std::size_t>(r)]; }
  ncclWindow_t& window(int r) { return windows_[static_cast<std::size_t>(r)]; }
  ncclResult_t enter(int r, std::size_t size = memory_bytes) {
    return ncclCommWindowRegister(rank(r).comm, arena(r), size, &window(r), NCCL_WIN_COLL_SYMMETRIC);
  }
  void enter_all() {
    for (int r = 0; r < size(); ++r) ASSERT_EQ(enter(r), ncclInProgress);
    wait_for_all();
  }
  void leave_all() {
    for (int r = 0; r < size(); ++r) {
      ASSERT_EQ(ncclCommWindowDeregister(rank(r).comm, window(r)), ncclSuccess);
    }
  }
  /// In place, of a float a rank, at `offset` in its window.
  ncclResult_t gather_in_window(int r, std::size_t offset) {
    std::byte* const flat = static_cast<std::byte*>(arena(r)) + offset;
    return ncclAllGather(flat + static_cast<std::size_t>(r) * 4, flat, 1, ncclFloat32, rank(r).comm,
                         rank(r).stream);
  }

  std::vector<void*> arenas_;
  std::vector<ncclWindow_t> windows_;
};

TEST_F(Windows, AreRegisteredOnceAllRanksHaveCome) {
  connect();
  allocate();
  ASSERT_EQ(enter(0), ncclInProgress);
  ASSERT_EQ(enter(1), ncclInProgress);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(look(0), ncclInProgress);
  ASSERT_EQ(enter(2), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) EXPECT_NE(window(r), nullptr);

  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather_in_window(r, 64), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) synchronize(r);
  EXPECT_EQ(collectives_in_windows(), 1u);
  leave_all();
}

TEST_F(Windows, WaitForEverForOneOfAnotherSize) {
  connect();
  allocate();
  for (int r = 0; r < size(); ++r) ASSERT_EQ(enter(r, r == 1 ? 512 : 1024), ncclInProgress);
  for (int i = 0; i < 10; ++i) EXPECT_EQ(look(0), ncclInProgress);
  for (int r = 0; r < size(); ++r) EXPECT_EQ(ncclCommAbort(rank(r).comm), ncclSuccess);
}

TEST_F(Windows, AreNullWhereNcclHasNoUseForThem) {
  open(2, {.windows = false});
  connect();
  allocate();
  for (int r = 0; r < size(); ++r) {
    EXPECT_EQ(enter(r), ncclSuccess);
    EXPECT_EQ(window(r), nullptr);
  }
}

TEST_F(Windows, AreUsedAtTheSameOffsetByAllRanks) {
  connect();
  allocate();
  enter_all();
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather_in_window(r, r == 2 ? 64 : 0), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) synchronize(r);
  EXPECT_NE(take_violations().at(0).find("same offset"), std::string::npos);
  leave_all();
}

TEST_F(Windows, EndBeforeTheirMemoryAndTheirCommunicator) {
  connect();
  allocate();
  enter_all();
  EXPECT_EQ(ncclMemFree(arena(0)), ncclSuccess);
  arena(0) = nullptr;
  EXPECT_EQ(take_violations(), std::vector<std::string>{"ncclMemFree of memory that is registered"});
  for (int r = 0; r < size(); ++r) ASSERT_EQ(ncclCommFinalize(rank(r).comm), ncclInProgress);
  wait_for_all();
  EXPECT_EQ(ncclCommDestroy(rank(1).comm), ncclSuccess);
  EXPECT_EQ(take_violations(), std::vector<std::string>{"a communicator is destroyed with a window"});
  EXPECT_EQ(ncclCommAbort(rank(0).comm), ncclSuccess);  // which ends it
  EXPECT_EQ(ncclCommAbort(rank(2).comm), ncclSuccess);
}

}  // namespace
}  // namespace penstock::test::fake_nccl
