#pragma once

#include "fake_cuda/fixture.hpp"
#include "fake_nccl/fake_nccl.hpp"

#include <cstring>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace penstock::test::fake_nccl {

/// Ranks on devices of their own, driven by one thread.
class FakeNccl : public testing::Test {
 protected:
  struct Rank {
    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
    std::byte* memory = nullptr;
  };
  static constexpr std::size_t memory_bytes = 1024;

  void SetUp() override { open(3); }
  void TearDown() override {
    EXPECT_EQ(take_violations(), std::vector<std::string>{});
    restart();
    fake_cuda::restart();
  }

  void open(int ranks, const Options& options = {}) {
    restart(options);
    fake_cuda::restart({.devices = ranks, .seed = options.seed});
    ranks_.assign(static_cast<std::size_t>(ranks), {});
    for (int r = 0; r < ranks; ++r) {
      ASSERT_EQ(cudaSetDevice(r), cudaSuccess);
      ASSERT_EQ(cudaStreamCreateWithFlags(&rank(r).stream, cudaStreamNonBlocking), cudaSuccess);
      void* memory = nullptr;
      ASSERT_EQ(cudaMalloc(&memory, memory_bytes), cudaSuccess);
      rank(r).memory = static_cast<std::byte*>(memory);
    }
  }
  Rank& rank(int r) { return ranks_[static_cast<std::size_t>(r)]; }
  int size() const { return static_cast<int>(ranks_.size()); }

  static ncclUniqueId make_id() {
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    return id;
  }
  /// Rank `r` of `ranks` comes to the communicator of `id`, on device `device`.
  ncclResult_t come(int r, const ncclUniqueId& id, int device) {
    EXPECT_EQ(cudaSetDevice(device), cudaSuccess);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    return ncclCommInitRankConfig(&rank(r).comm, size(), id, r, &config);
  }
  void connect() {
    const ncclUniqueId id = make_id();
    for (int r = 0; r < size(); ++r) ASSERT_EQ(come(r, id, r), ncclInProgress);
    for (int r = 0; r < size(); ++r) ASSERT_EQ(wait(r), ncclSuccess);
  }
  static ncclResult_t look(ncclComm_t comm) {
    ncclResult_t error = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(comm, &error), ncclSuccess);
    return error;
  }
  ncclResult_t look(int r) { return look(rank(r).comm); }
  /// Looks until nothing is in progress.
  ncclResult_t wait(int r) {
    ncclResult_t error = look(r);
    while (error == ncclInProgress) error = look(r);
    return error;
  }
  void wait_for_all() {
    for (int r = 0; r < size(); ++r) ASSERT_EQ(wait(r), ncclSuccess) << ncclGetLastError(rank(r).comm);
  }

  std::span<float> floats(int r) {
    return {reinterpret_cast<float*>(fake_cuda::bytes(rank(r).memory, memory_bytes)),
            memory_bytes / sizeof(float)};
  }
  /// In place, of `count` floats a rank.
  ncclResult_t gather(int r, std::size_t count = 4) {
    std::byte* const own = rank(r).memory + static_cast<std::size_t>(r) * count * sizeof(float);
    return ncclAllGather(own, rank(r).memory, count, ncclFloat32, rank(r).comm, rank(r).stream);
  }
  void synchronize(int r) { ASSERT_EQ(cudaStreamSynchronize(rank(r).stream), cudaSuccess); }
  /// Whether the stream has not passed what is on it, in a time in which it would.
  bool waits(int r) {
    cudaEvent_t event = nullptr;
    EXPECT_EQ(cudaSetDevice(r), cudaSuccess);
    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(event, rank(r).stream), cudaSuccess);
    for (int i = 0; i < 100; ++i) std::this_thread::yield();
    const bool waiting = cudaEventQuery(event) == cudaErrorNotReady;
    (void)cudaGetLastError();
    EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
    return waiting;
  }

  std::vector<Rank> ranks_;
};

}  // namespace penstock::test::fake_nccl
