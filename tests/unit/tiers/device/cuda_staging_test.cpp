// Copies of pageable memory by the adapter of CUDA devices, on a fake CUDA runtime.
#include "fake_cuda/fixture.hpp"
#include "tiers/device/cuda_device.hpp"

#include <penstock/base/units.hpp>

#include <algorithm>
#include <cstdint>
#include <numeric>

namespace penstock::tiers {
namespace {

using namespace test::fake_cuda;

class CudaStagingOnFake : public FakeCuda {
 protected:
  // Several slots, and a part of one.
  static constexpr ByteCount size = 37_MiB + ByteCount(5);

  void open() {
    cuda_ = create_cuda_device(0).value();
    stream_ = cuda_->create_stream().value();
    span_ = cuda_->allocate(size).value();
  }
  static std::vector<std::uint8_t> numbers(std::uint8_t first) {
    std::vector<std::uint8_t> numbers(size.value());
    std::iota(numbers.begin(), numbers.end(), first);
    return numbers;
  }
  static HostSpan host(std::vector<std::uint8_t>& memory) { return HostSpan(std::span(memory)); }
  cudaStream_t native() { return static_cast<cudaStream_t>(stream_->handle().native()); }
  Result<void> copy_in(std::vector<std::uint8_t>& from) {
    return cuda_->copy_to_device(stream_->handle(), host(from), span_);
  }
  Result<void> copy_out(std::vector<std::uint8_t>& to) {
    return cuda_->copy_to_host(stream_->handle(), span_, host(to));
  }

  std::unique_ptr<Device> cuda_;
  std::unique_ptr<Stream> stream_;
  DeviceSpan span_;
};

TEST_F(CudaStagingOnFake, CopiesWhenTheStreamGetsThereAndBlocksNoCaller) {
  open();
  auto memory = numbers(0), result = std::vector<std::uint8_t>(size.value());
  Gate gate(native());

  ASSERT_TRUE(copy_in(memory));
  ASSERT_TRUE(copy_out(result));
  const auto later = numbers(7);
  std::copy(later.begin(), later.end(), memory.begin());
  EXPECT_EQ(result.back(), 0);
  gate.open();
  ASSERT_TRUE(stream_->synchronize());

  EXPECT_TRUE(result == later);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaStagingOnFake, KeepsStreamsApartInEveryOrder) {
  for (std::uint64_t seed = 1; seed <= 10; ++seed) {
    restart({.seed = seed});
    open();
    auto other_stream = cuda_->create_stream().value();
    const DeviceSpan other_span = cuda_->allocate(size).value();
    auto first = numbers(1), second = numbers(2);
    std::vector<std::uint8_t> first_result(first.size()), second_result(first.size());

    ASSERT_TRUE(copy_in(first));
    ASSERT_TRUE(cuda_->copy_to_device(other_stream->handle(), host(second), other_span));
    ASSERT_TRUE(copy_out(first_result));
    ASSERT_TRUE(cuda_->copy_to_host(other_stream->handle(), other_span, host(second_result)));
    ASSERT_TRUE(stream_->synchronize());
    ASSERT_TRUE(other_stream->synchronize());

    EXPECT_TRUE(first_result == first) << "seed " << seed;
    EXPECT_TRUE(second_result == second) << "seed " << seed;
  }
}

TEST_F(CudaStagingOnFake, IsSetUpOnceAndNotForRegisteredMemory) {
  open();
  auto memory = numbers(0);
  ASSERT_TRUE(cuda_->pin(host(memory)));
  ASSERT_TRUE(copy_in(memory));
  ASSERT_TRUE(stream_->synchronize());
  EXPECT_EQ(count().of("cudaLaunchHostFunc"), 0u);
  cuda_->unpin(host(memory));

  ASSERT_TRUE(copy_in(memory));
  const Live after_first = live();
  EXPECT_EQ(after_first.registrations, 4u);
  ASSERT_TRUE(copy_in(memory));
  EXPECT_EQ(live(), after_first);

  ASSERT_TRUE(stream_->synchronize());
  cuda_->release(span_);
  stream_.reset();
  cuda_.reset();
  EXPECT_EQ(live(), Live{});
}

TEST_F(CudaStagingOnFake, LeavesSlotsWhoseUseCannotBeQueried) {
  open();
  auto memory = numbers(0);
  Gate gate(native());
  ASSERT_TRUE(copy_in(memory));
  const auto destroy = std::async(std::launch::async, [&] {
    fail_call("cudaEventQuery", 1, cudaErrorInvalidValue);
    cuda_.reset();
  });
  gate.open();
  destroy.wait();

  EXPECT_TRUE(stream_->synchronize());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaStagingOnFake, LeavesSlotsThatAStreamStillUses) {
  open();
  auto memory = numbers(0);
  const cudaStream_t mine = make_stream();
  auto wrapped = wrap_cuda_stream(0, mine).value();
  Gate gate(mine);
  ASSERT_TRUE(cuda_->copy_to_host(wrapped->handle(), span_, host(memory)));

  wrapped.reset();
  stream_.reset();
  cuda_.reset();
  gate.open();

  EXPECT_EQ(cudaStreamSynchronize(mine), cudaSuccess);
  EXPECT_EQ(live().registrations, 4u);
}

TEST_F(CudaStagingOnFake, ReportsASlotThatCannotBeRegisteredAndTriesAgain) {
  open();
  auto memory = numbers(0);
  fail_call("cudaHostRegister", 2, cudaErrorMemoryAllocation);

  EXPECT_EQ(copy_in(memory).error().code(), ErrorCode::budget_too_small);

  EXPECT_TRUE(copy_in(memory));
  EXPECT_TRUE(stream_->synchronize());
  EXPECT_EQ(live().registrations, 4u);
}

/// The calls of a copy for each of its slots.
constexpr const char* calls_of_a_part[] = {"cudaStreamWaitEvent", "cudaLaunchHostFunc", "cudaMemcpyAsync",
                                           "cudaEventRecord"};

TEST_F(CudaStagingOnFake, CopiesWithAllSlotsAfterACopyThatFailedInItsMiddle) {
  for (const char* const function : calls_of_a_part) {
    for (const std::uint64_t nth : {2u, 6u}) {
      for (const bool to_host : {false, true}) {
        SCOPED_TRACE(std::string(function) + ", call " + std::to_string(nth) + (to_host ? ", to host" : ""));
        restart();
        open();
        auto memory = numbers(3), result = std::vector<std::uint8_t>(size.value());
        ASSERT_TRUE(to_host ? copy_in(memory) : ok());
        ASSERT_TRUE(stream_->synchronize());
        const bool end_is_unknown = function == std::string("cudaEventRecord");
        {
          Gate gate(native());
          fail_call(function, nth, cudaErrorInvalidValue);

          const auto failed = to_host ? copy_out(result) : copy_in(memory);

          ASSERT_FALSE(failed);
          EXPECT_EQ(failed.error().code(), ErrorCode::io);
          EXPECT_NE(failed.error().message().find("invalid argument"), std::string::npos);
          ASSERT_TRUE(to_host ? copy_out(result) : copy_in(memory));
        }
        ASSERT_TRUE(to_host ? ok() : copy_out(result));
        ASSERT_TRUE(stream_->synchronize());

        EXPECT_TRUE(result == memory);
        EXPECT_EQ(live().registrations, end_is_unknown ? 9u : 8u);
        cuda_->release(span_);
        stream_.reset();
        cuda_.reset();
        EXPECT_EQ(live().registrations, end_is_unknown ? 1u : 0u);
      }
    }
  }
}

// Before either call a use of the slot is enqueued.
TEST_F(CudaStagingOnFake, LeavesTheSlotOfAPartThatFailedWhileAStreamUsesIt) {
  for (const char* const function : {"cudaLaunchHostFunc", "cudaEventRecord"}) {
    SCOPED_TRACE(function);
    restart();
    open();
    auto memory = numbers(0);
    const cudaStream_t mine = make_stream();
    auto wrapped = wrap_cuda_stream(0, mine).value();
    Gate gate(mine);
    fail_call(function, 1, cudaErrorInvalidValue);
    ASSERT_FALSE(cuda_->copy_to_host(wrapped->handle(), span_, host(memory)));

    wrapped.reset();
    stream_.reset();
    cuda_.reset();
    gate.open();

    EXPECT_EQ(cudaStreamSynchronize(mine), cudaSuccess);
    EXPECT_EQ(live().registrations, 1u);
  }
}

}  // namespace
}  // namespace penstock::tiers
