#include "fixture.hpp"

#include <cstring>

namespace penstock::test::cuda_semantics {
namespace {

class CudaCopies : public CudaSemantics {
 protected:
  void SetUp() override {
    CudaSemantics::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    if (properties(0).pageableMemoryAccessUsesHostPageTables != 0) {
      GTEST_SKIP() << "the device uses the host's page tables, so that all host memory is alike";
    }
    stream = make_stream();
  }

  cudaStream_t stream = nullptr;
};

TEST_F(CudaCopies, ReadRegisteredMemoryWhenTheStreamGetsThere) {
  Pages host(1);
  host.register_pages(0, 1);
  unsigned* const device = allocate();
  *host.words() = 1;
  Hold hold(stream);

  ASSERT_EQ(cudaMemcpyAsync(device, host.words(), sizeof *device, cudaMemcpyHostToDevice, stream),
            cudaSuccess);

  EXPECT_TRUE(hold.holds());
  *host.words() = 2;
  hold.release();
  EXPECT_EQ(value(device), 2u);
}

TEST_F(CudaCopies, WriteRegisteredMemoryWhenTheStreamGetsThere) {
  Pages host(1);
  host.register_pages(0, 1);
  unsigned* const device = allocate();
  Hold hold(stream);
  write(device, 3, stream);

  copy_out(host.words(), device, stream);

  EXPECT_TRUE(hold.holds());
  EXPECT_EQ(*host.words(), 0u);
  hold.release();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(*host.words(), 3u);
}

// CUDA 13 only says that copies of pageable memory may be synchronous; before, it said what the next two tests assert.
// The library depends on neither.
TEST_F(CudaCopies, HaveReadPageableMemoryWhenTheCallReturns) {
  for (const std::size_t size : {4u, 60u << 10, 8u << 20}) {
    const std::size_t last = size / sizeof(unsigned) - 1;
    std::vector<unsigned> host(last + 1, 1);
    unsigned* const device = allocate(size);
    Hold hold(stream);
    hold.release_after(milliseconds(50));  // the call may wait for the stream

    ASSERT_EQ(cudaMemcpyAsync(device, host.data(), size, cudaMemcpyHostToDevice, stream), cudaSuccess);

    host.assign(last + 1, 2);
    EXPECT_EQ(value(device), 1u) << size;
    EXPECT_EQ(value(device + last), 1u) << size;
  }
}

TEST_F(CudaCopies, HaveWrittenPageableMemoryWhenTheCallReturns) {
  for (const std::size_t size : {4u, 60u << 10, 8u << 20}) {
    const std::size_t last = size / sizeof(unsigned) - 1;
    std::vector<unsigned> host(last + 1, 0);
    unsigned* const device = allocate(size);
    Hold hold(stream);
    write(device + last, 5, stream);
    hold.release_after(milliseconds(50));

    ASSERT_EQ(cudaMemcpyAsync(host.data(), device, size, cudaMemcpyDeviceToHost, stream), cudaSuccess);

    EXPECT_EQ(host[last], 5u) << size;
  }
}

TEST_F(CudaCopies, ThatLeaveARegistrationAreRefusedAndThoseThatEnterOneAreRight) {
  Pages host(3);
  host.register_pages(1, 1);
  const std::size_t page = Pages::page_size();
  unsigned* const device = allocate(3 * page);
  const struct {
    std::byte* address;
    std::size_t size;
    cudaError_t result;
  } ranges[] = {{host.page(0), page, cudaSuccess},
                {host.page(1), page, cudaSuccess},
                {host.page(2), page, cudaSuccess},
                {host.page(1) - 8, 16, cudaSuccess},
                {host.page(0), 3 * page, cudaSuccess},
                {host.page(2) - 8, 16, cudaErrorInvalidValue},
                {host.page(1), 2 * page, cudaErrorInvalidValue}};
  for (const auto& range : ranges) {
    std::memset(host.page(0), 1, host.size());
    EXPECT_EQ(cudaMemcpyAsync(device, range.address, range.size, cudaMemcpyHostToDevice, stream),
              range.result)
        << range.address - host.page(0) << " + " << range.size;
    EXPECT_EQ(cudaGetLastError(), range.result);
    if (range.result == cudaSuccess) {
      EXPECT_EQ(value(device), 0x01010101u);
      EXPECT_EQ(value(device + range.size / sizeof(unsigned) - 1), 0x01010101u);
    }
    ASSERT_EQ(cudaMemsetAsync(device, 2, 3 * page, stream), cudaSuccess);
    EXPECT_EQ(cudaMemcpyAsync(range.address, device, range.size, cudaMemcpyDeviceToHost, stream),
              range.result)
        << range.address - host.page(0) << " + " << range.size;
    EXPECT_EQ(cudaGetLastError(), range.result);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess) << "the context is not lost";
    const auto written = range.result == cudaSuccess ? std::byte{2} : std::byte{1};
    EXPECT_EQ(range.address[0], written);
    EXPECT_EQ(range.address[range.size - 1], written);
  }
}

// CUDA does not say which; the library divides such copies, and the fake refuses them.
TEST_F(CudaCopies, AcrossTwoAdjacentRegistrationsAreRefusedOrRight) {
  Pages host(2);
  host.register_pages(0, 1);
  host.register_pages(1, 1);
  std::memset(host.page(0), 1, Pages::page_size());
  std::memset(host.page(1), 2, Pages::page_size());
  unsigned* const device = allocate(host.size());
  unsigned* const second = device + Pages::page_size() / sizeof(unsigned);

  const cudaError_t error =
      cudaMemcpyAsync(device, host.page(0), host.size(), cudaMemcpyHostToDevice, stream);

  RecordProperty("returned", cudaGetErrorString(error));
  EXPECT_EQ(cudaGetLastError(), error);
  if (error == cudaSuccess) {
    EXPECT_EQ(value(device), 0x01010101u);
    EXPECT_EQ(value(second), 0x02020202u);
  } else {
    EXPECT_EQ(error, cudaErrorInvalidValue);
  }
}

TEST_F(CudaCopies, OfEachOfTwoAdjacentRegistrationsAreAsynchronous) {
  Pages host(2);
  host.register_pages(0, 1);
  host.register_pages(1, 1);
  unsigned* const device = allocate(host.size());
  Hold hold(stream);
  for (std::size_t i = 0; i < 2; ++i) {
    ASSERT_EQ(cudaMemcpyAsync(device + i, host.page(i), sizeof *device, cudaMemcpyHostToDevice, stream),
              cudaSuccess);
  }

  EXPECT_TRUE(hold.holds());
  for (std::size_t i = 0; i < 2; ++i) std::memset(host.page(i), 7, sizeof *device);
  hold.release();
  for (std::size_t i = 0; i < 2; ++i) EXPECT_EQ(value(device + i), 0x07070707u);
}

TEST_F(CudaCopies, ThatLeaveAnAllocationAreRefused) {
  constexpr std::size_t size = 4 << 20, beyond = 64 << 20;  // more than CUDA rounds up to
  const Pages host(beyond / Pages::page_size());
  unsigned* const device = allocate(size);

  EXPECT_EQ(cudaMemcpyAsync(device, host.words(), beyond, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device, 0, beyond, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);

  EXPECT_EQ(cudaMemsetAsync(device, 0, size, stream), cudaSuccess);
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
