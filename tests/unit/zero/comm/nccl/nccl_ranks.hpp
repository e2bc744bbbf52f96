#pragma once

#include "fake_cuda/fixture.hpp"
#include "fake_nccl/fake_nccl.hpp"
#include "kernels/cuda_compute.hpp"
#include "kit/memory_job.hpp"
#include "tiers/device/cuda_device.hpp"
#include "zero/comm/nccl/nccl_group.hpp"

#include <penstock/tiers/io/sim_disk.hpp>

#include <gtest/gtest.h>
#include <array>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace penstock::zero::test {

namespace fake_cuda = penstock::test::fake_cuda;
namespace fake_nccl = penstock::test::fake_nccl;

/// Ranks with NCCL communicators on fake devices, driven by the test's thread.
class NcclRanks : public testing::Test {
 protected:
  static constexpr TimePoint deadline = std::chrono::seconds(10);
  static constexpr ByteCount memory_size = 64_KiB;

  struct Rank {
    int device = 0;  // number
    std::unique_ptr<tiers::Device> cuda;
    std::unique_ptr<Compute> compute;
    std::unique_ptr<tiers::Stream> stream;
    DeviceSpan memory;
    std::shared_ptr<JobControl> control;
    Result<std::unique_ptr<Communicator>> joined = Error(ErrorCode::failed_state, "test");

    Communicator& communicator() { return **joined; }
  };

  void SetUp() override { ASSERT_EQ(setenv("PENSTOCK_NCCL", PENSTOCK_FAKE_NCCL, /*overwrite=*/1), 0); }
  void TearDown() override { close(); }
  void close() {
    for (const auto& rank : ranks_) {
      rank->joined = Error(ErrorCode::failed_state, "test");
      rank->stream.reset();
      if (rank->cuda) rank->cuda->release(rank->memory);
    }
    ranks_.clear();
    EXPECT_EQ(fake_nccl::take_violations(), std::vector<std::string>{});
    EXPECT_EQ(fake_nccl::live(), 0u);
    fake_nccl::restart();
    fake_cuda::restart();
  }

  /// `count` ranks that have not joined, on devices of their own, or on so many `devices`.
  void make(std::uint32_t count, const fake_nccl::Options& nccl = {}, std::uint32_t devices = 0) {
    close();
    if (devices == 0) devices = count;
    fake_nccl::restart(nccl);
    fake_cuda::restart({.devices = static_cast<int>(devices), .seed = nccl.seed});
    job_ = std::make_shared<penstock::test::MemoryJob>(count);
    for (std::uint32_t r = 0; r < count; ++r) {
      auto& rank = *ranks_.emplace_back(std::make_unique<Rank>());
      rank.device = static_cast<int>(r % devices);
      rank.cuda = tiers::create_cuda_device(rank.device).value();
      rank.compute = kernels::make_cuda_compute(rank.device).value();
      rank.stream = rank.cuda->create_stream().value();
      rank.memory = rank.cuda->allocate(memory_size).value();
      rank.control = job_->control(r);
    }
  }
  void join(std::uint32_t r, const Clock& clock) {
    NcclGroupOptions options = options_;
    options.clock = &clock;
    rank(r).joined = nccl_membership(rank(r).control, options).join(*rank(r).cuda, *rank(r).compute, needs_);
  }
  void join_all() {
    std::vector<std::thread> joining;
    for (std::uint32_t r = 0; r < size(); ++r) joining.emplace_back([this, r] { join(r, clock_); });
    for (std::thread& one : joining) one.join();
  }
  void open(std::uint32_t count, const fake_nccl::Options& nccl = {}) {
    make(count, nccl);
    join_all();
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->joined) << rank->joined.error().message();
  }

  std::uint32_t size() const { return static_cast<std::uint32_t>(ranks_.size()); }
  Rank& rank(std::uint32_t r) { return *ranks_[r]; }
  Communicator& communicator(std::uint32_t r) { return rank(r).communicator(); }
  static cudaStream_t native(tiers::Stream& stream) {
    return static_cast<cudaStream_t>(stream.handle().native());
  }

  /// A flat of `elements` in each slot.
  DeviceTensor flat(std::uint32_t r, DType dtype, std::uint64_t elements = 64) {
    return {rank(r).memory.subspan(0_B, size_of(dtype) * (elements * size())), dtype};
  }
  std::byte* bytes(std::uint32_t r) {
    return fake_cuda::bytes(reinterpret_cast<const void*>(rank(r).memory.address()), memory_size.value());
  }
  Result<void> gather(std::uint32_t r) {
    return communicator(r).start_all_gather(*rank(r).stream, flat(r, DType::fp32).bytes,
                                            {.unit = 3, .step = 7});
  }
  Result<void> reduce(std::uint32_t r, DType dtype, Reduction reduction) {
    return communicator(r).start_reduce_scatter(*rank(r).stream, std::array{flat(r, dtype)}, reduction,
                                                {.unit = 4, .step = 7});
  }

  /// Polls all ranks until each has completed or failed.
  std::vector<Result<bool>> poll_all() {
    std::vector<Result<bool>> outcomes(size(), Result<bool>(false));
    for (bool pending = true; pending;) {
      pending = false;
      for (std::uint32_t r = 0; r < size(); ++r) {
        if (outcomes[r] && !*outcomes[r]) outcomes[r] = communicator(r).poll();
        pending |= outcomes[r] && !*outcomes[r];
      }
    }
    return outcomes;
  }
  void finish() {
    for (const auto& outcome : poll_all()) ASSERT_TRUE(outcome) << outcome.error().message();
  }
  void synchronize() {
    for (const auto& rank : ranks_) ASSERT_TRUE(rank->stream->synchronize());
  }
  /// Polls `r` every 50 ms for `time`; stops at an error, and at completion where `until_complete`.
  Result<bool> poll_for(std::uint32_t r, TimePoint time) {
    Result<bool> outcome = communicator(r).poll();
    for (TimePoint waited{}; outcome && waited < time; waited += std::chrono::milliseconds(50)) {
      clock_.advance_to(clock_.now() + std::chrono::milliseconds(50));
      outcome = communicator(r).poll();
    }
    return outcome;
  }
  static void expect_words(const Error& error, ErrorCode code, const std::vector<std::string>& words) {
    EXPECT_EQ(error.code(), code) << error.message();
    for (const std::string& word : words) {
      EXPECT_NE(error.message().find(word), std::string::npos) << word << " in " << error.message();
    }
  }

  tiers::SimClock clock_;
  CollectiveNeeds needs_{.exact_slots_max = 1_KiB};
  NcclGroupOptions options_{.join = deadline, .deadline = deadline, .leave = deadline};
  std::shared_ptr<penstock::test::MemoryJob> job_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

}  // namespace penstock::zero::test
