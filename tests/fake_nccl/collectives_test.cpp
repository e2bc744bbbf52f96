// What collectives of the fake NCCL do, and when.
#include "fake_nccl/fixture.hpp"

#include "kit/seeded_random.hpp"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <algorithm>

namespace penstock::test::fake_nccl {
namespace {

class FakeNcclCollectives : public FakeNccl {
 protected:
  void SetUp() override {
    FakeNccl::SetUp();
    connect();
  }
};

TEST_F(FakeNcclCollectives, GatherInPlaceOnceEveryStreamHasGotThere) {
  for (int r = 0; r < size(); ++r) std::ranges::fill(floats(r), static_cast<float>(r + 1));
  fake_cuda::Gate gate(rank(2).stream);
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
  wait_for_all();
  EXPECT_TRUE(waits(0));

  gate.open();

  for (int r = 0; r < size(); ++r) {
    synchronize(r);
    for (std::size_t e = 0; e < 12; ++e) EXPECT_EQ(floats(r)[e], static_cast<float>(e / 4 + 1));
    EXPECT_EQ(floats(r)[12], static_cast<float>(r + 1));
  }
}

TEST_F(FakeNcclCollectives, AreOnTheStreamWhenTheCommunicatorSaysSoAndMayNotBeBefore) {
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
  wait_for_all();
  for (int r = 0; r < size(); ++r) {
    synchronize(r);
    ASSERT_EQ(gather(r), ncclInProgress);
  }

  synchronize(0);  // nothing is on the stream
  EXPECT_EQ(wait(0), ncclSuccess);
  EXPECT_TRUE(waits(0));

  wait_for_all();
  synchronize(0);
}

TEST_F(FakeNcclCollectives, ConnectWithTheFirstOfEachRank) {
  ASSERT_EQ(gather(0), ncclInProgress);
  ASSERT_EQ(gather(1), ncclInProgress);
  for (int i = 0; i < 10; ++i) ASSERT_EQ(look(0), ncclInProgress);
  ASSERT_EQ(gather(2), ncclInProgress);
  wait_for_all();

  ASSERT_EQ(gather(0), ncclInProgress);

  EXPECT_EQ(wait(0), ncclSuccess);  // the peers have not come yet
}

TEST_F(FakeNcclCollectives, TakeAsManyLooksAsTheSeedChooses) {
  bool more_than_one = false;
  for (std::uint64_t seed = 0; seed < 10; ++seed) {
    open(3, {.seed = seed});
    connect();
    for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r), ncclInProgress);
    more_than_one |= look(0) == ncclInProgress;
    wait_for_all();
  }
  EXPECT_TRUE(more_than_one);
}

template <class T>
T rounded(float x) {
  if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
  if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  if constexpr (std::is_same_v<T, float>) return x;
}

TEST_F(FakeNcclCollectives, AverageRoundTheRingWithARoundingAfterEachAddition) {
  const auto check = [&]<class T>(T, ncclDataType_t type) {
    SeededRandom random(1);
    std::vector<std::vector<T>> values(3);
    for (int r = 0; r < 3; ++r) {
      auto* const memory = reinterpret_cast<T*>(floats(r).data());
      for (int e = 0; e < 6; ++e) {
        values[static_cast<std::size_t>(r)].push_back(memory[e] = rounded<T>(random.symmetric()));
      }
    }
    for (int r = 0; r < 3; ++r) {
      std::byte* const own = rank(r).memory + static_cast<std::size_t>(r) * 2 * sizeof(T);
      ASSERT_EQ(ncclReduceScatter(rank(r).memory, own, 2, type, ncclAvg, rank(r).comm, rank(r).stream),
                ncclInProgress);
    }
    wait_for_all();
    for (std::size_t r = 0; r < 3; ++r) {
      synchronize(static_cast<int>(r));
      const auto* const memory = reinterpret_cast<const T*>(floats(static_cast<int>(r)).data());
      for (std::size_t e = 2 * r; e < 2 * r + 2; ++e) {
        const auto third = [&](std::size_t from) {
          return float(rounded<T>(float(values[from % 3][e]) * float(rounded<T>(1.0f / 3))));
        };
        const T two = rounded<T>(third(r + 1) + third(r + 2));
        EXPECT_EQ(float(memory[e]), float(rounded<T>(float(two) + third(r))));
      }
    }
  };
  check(float{}, ncclFloat32);
  check(__half{}, ncclFloat16);
  check(__nv_bfloat16{}, ncclBfloat16);
}

TEST_F(FakeNcclCollectives, RunTheSendsAndReceivesOfAGroupTogether) {
  for (int r = 0; r < size(); ++r) {
    for (std::size_t e = 0; e < 6; ++e) floats(r)[e] = static_cast<float>(10 * r) + static_cast<float>(e);
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < size(); ++peer) {
      Rank& mine = rank(r);
      const auto at = static_cast<std::size_t>(peer) * 8;
      ASSERT_EQ(ncclSend(mine.memory + at, 2, ncclFloat32, peer, mine.comm, mine.stream), ncclSuccess);
      ASSERT_EQ(ncclRecv(mine.memory + 64 + at, 2, ncclFloat32, peer, mine.comm, mine.stream), ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclInProgress);
  }
  wait_for_all();

  for (int r = 0; r < size(); ++r) {
    synchronize(r);
    for (std::size_t e = 0; e < 6; ++e) {
      EXPECT_EQ(floats(r)[16 + e],
                static_cast<float>(e / 2 * 10) + static_cast<float>(2 * r) + static_cast<float>(e % 2));
    }
  }
}

TEST_F(FakeNcclCollectives, HangAndAreReportedWhereRanksDiffer) {
  for (int r = 0; r < size(); ++r) ASSERT_EQ(gather(r, r == 1 ? 2 : 4), ncclInProgress);
  wait_for_all();

  for (std::vector<std::string> seen; seen.empty(); seen = take_violations()) std::this_thread::yield();

  EXPECT_TRUE(waits(0));
  for (int r = 0; r < size(); ++r) ASSERT_EQ(ncclCommAbort(rank(r).comm), ncclSuccess);
  for (int r = 0; r < size(); ++r) synchronize(r);
  (void)take_violations();  // each pair that differs
}

TEST_F(FakeNcclCollectives, HangAndAreReportedWhereASendDoesNotFitItsReceive) {
  ASSERT_EQ(ncclSend(rank(0).memory, 2, ncclFloat32, 1, rank(0).comm, rank(0).stream), ncclInProgress);
  ASSERT_EQ(ncclRecv(rank(1).memory, 3, ncclFloat32, 0, rank(1).comm, rank(1).stream), ncclInProgress);
  ASSERT_EQ(ncclSend(rank(2).memory, 0, ncclFloat32, 2, rank(2).comm, rank(2).stream), ncclInProgress);
  wait_for_all();

  std::vector<std::string> seen;
  while (seen.empty()) seen = take_violations();

  EXPECT_EQ(seen, std::vector<std::string>{
                      "a send of 2 elements of type 7 meets a receive of 3 elements of type 7"});
  EXPECT_TRUE(waits(1));
}

}  // namespace
}  // namespace penstock::test::fake_nccl
