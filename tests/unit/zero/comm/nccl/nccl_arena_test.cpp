// Memory that NCCL registers for the flats of a rank.
#include "nccl_ranks.hpp"

#include "zero/comm/nccl/nccl_arena.hpp"
#include "zero/comm/nccl/nccl_connection.hpp"

namespace penstock::zero::test {
namespace {

class NcclArena : public NcclRanks {
 protected:
  NcclArena() { needs_.arena = 8_KiB; }

  /// All ranks gather at `offset` of their arenas.
  void gather_in_arenas(ByteCount offset) {
    for (std::uint32_t r = 0; r < size(); ++r) {
      const DeviceSpan flat = communicator(r).arena()->subspan(offset, 256_B * size());
      ASSERT_TRUE(communicator(r).start_all_gather(*rank(r).stream, flat, {.unit = 1, .step = 1}));
    }
    finish();
    synchronize();
  }
  void retire_all() {
    std::vector<std::thread> leaving;
    for (const auto& one : ranks_) {
      leaving.emplace_back([&rank = *one] { rank.communicator().retire(*rank.stream); });
    }
    for (std::thread& one : leaving) one.join();
  }
};

TEST_F(NcclArena, IsRegisteredUntilTheRanksRetire) {
  open(3);
  for (std::uint32_t r = 0; r < size(); ++r) EXPECT_EQ(communicator(r).arena()->size(), 8_KiB);
  EXPECT_EQ(fake_nccl::calls("ncclCommWindowRegister"), 3u);

  gather_in_arenas(4_KiB);
  EXPECT_EQ(fake_nccl::calls("ncclCommWindowDeregister"), 0u);
  retire_all();

  EXPECT_EQ(fake_nccl::calls("ncclCommWindowDeregister"), 3u);
  EXPECT_EQ(fake_nccl::calls("ncclMemFree"), 0u);
  for (const auto& one : ranks_) one->joined = Error(ErrorCode::failed_state, "test");
  EXPECT_EQ(fake_nccl::calls("ncclMemFree"), 3u);
}

TEST_F(NcclArena, IsKeptByTheOneWhoUsesIt) {
  open(1);
  const auto kept = communicator(0).arena();
  rank(0).joined = Error(ErrorCode::failed_state, "test");
  EXPECT_EQ(fake_nccl::calls("ncclMemFree"), 0u);
}

TEST_F(NcclArena, IsRegisteredAgainAfterARecovery) {
  open(2);
  communicator(1).interrupt(Error(ErrorCode::interrupted, "test"));
  for (std::uint32_t r = 0; r < size(); ++r) EXPECT_TRUE(communicator(r).start_recovery(*rank(r).stream));
  finish();

  gather_in_arenas(0_B);
  EXPECT_EQ(fake_nccl::calls("ncclCommWindowRegister"), 4u);
}

TEST_F(NcclArena, NeedsNoWindow) {
  open(2, {.windows = false});
  gather_in_arenas(0_B);
  retire_all();
  EXPECT_EQ(fake_nccl::calls("ncclCommWindowDeregister"), 0u);

  // As in a library before 2.27.
  NcclLibrary old = *NcclLibrary::instance().value();
  old.ncclCommWindowRegister = nullptr;
  old.ncclCommWindowDeregister = nullptr;
  NcclConnection connection(old, {});
  EXPECT_TRUE(connection.register_arena({}));
}

TEST_F(NcclArena, IsNoneWhereNoneIsNeeded) {
  needs_.arena = {};
  open(2);
  EXPECT_EQ(communicator(0).arena(), nullptr);
  EXPECT_EQ(fake_nccl::calls("ncclMemAlloc"), 0u);
}

TEST_F(NcclArena, TellsEveryRankThatOneHasNoMemory) {
  make(2);
  fake_nccl::fail_call("ncclMemAlloc", 1, ncclUnhandledCudaError);
  join_all();
  const bool first = rank(0).joined.error().code() == ErrorCode::no_space;
  expect_words(rank(first ? 0 : 1).joined.error(), ErrorCode::no_space, {"ncclMemAlloc", "8.0 KiB"});
  expect_words(rank(first ? 1 : 0).joined.error(), ErrorCode::peer_failed, {"ncclMemAlloc"});
}

}  // namespace
}  // namespace penstock::zero::test
