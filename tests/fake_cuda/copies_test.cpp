#include "fake_cuda/fixture.hpp"

#include <chrono>
#include <set>
#include <thread>

namespace penstock::test::fake_cuda {
namespace {

class FakeCudaCopies : public FakeCuda {
 protected:
  /// The first byte of an allocation, once the stream has run.
  static int first_byte(cudaStream_t stream, const std::byte* address) {
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    return static_cast<int>(*bytes(address, 1));
  }
  static cudaError_t to_device(std::byte* to, const std::vector<std::byte>& from, cudaStream_t stream) {
    return cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream);
  }
  /// Runs `calls` while the stream is held, but not for long, because they may wait for the stream.
  template <class Calls>
  void while_held(const Calls& calls) const {
    Gate gate(stream);
    std::promise<void> done;
    const auto opened = std::async(std::launch::async, [&] {
      (void)done.get_future().wait_for(std::chrono::milliseconds(20));
      gate.open();
    });
    calls();
    done.set_value();
  }

  cudaStream_t stream = nullptr;
  void SetUp() override {
    FakeCuda::SetUp();
    stream = make_stream();
  }
};

TEST_F(FakeCudaCopies, ReadRegisteredMemoryWhenTheyRun) {
  std::vector<std::byte> host(100, std::byte{1});
  std::byte* const device = allocate(100);
  ASSERT_EQ(cudaHostRegister(host.data(), host.size(), 0), cudaSuccess);
  Gate gate(stream);
  ASSERT_EQ(to_device(device, host, stream), cudaSuccess);
  host.assign(100, std::byte{2});

  gate.open();

  EXPECT_EQ(first_byte(stream, device), 2);
}

TEST_F(FakeCudaCopies, ReadPageableMemoryBeforeTheCallReturns) {
  std::vector<std::byte> host(100, std::byte{1});
  std::byte* const device = allocate(100);
  Gate gate(stream);
  ASSERT_EQ(to_device(device, host, stream), cudaSuccess);
  host.assign(100, std::byte{2});

  gate.open();

  EXPECT_EQ(first_byte(stream, device), 1);
}

TEST_F(FakeCudaCopies, WriteRegisteredMemoryWhenTheyRunAndPageableMemoryBeforeTheCallReturns) {
  std::vector<std::byte> registered(100), pageable(100);
  std::byte* const device = allocate(100);
  ASSERT_EQ(cudaHostRegister(registered.data(), 100, 0), cudaSuccess);
  ASSERT_EQ(cudaMemsetAsync(device, 7, 100, stream), cudaSuccess);
  {
    Gate gate(stream);
    ASSERT_EQ(cudaMemcpyAsync(registered.data(), device, 100, cudaMemcpyDeviceToHost, stream), cudaSuccess);
    EXPECT_EQ(registered[99], std::byte{0});
  }

  ASSERT_EQ(cudaMemcpyAsync(pageable.data(), device, 100, cudaMemcpyDeviceToHost, stream), cudaSuccess);

  EXPECT_EQ(pageable[99], std::byte{7});
  EXPECT_EQ(registered[99], std::byte{7});
}

TEST_F(FakeCudaCopies, UsePageableMemoryDuringTheCallOrLaterAsTheSeedChooses) {
  std::set<int> read, written;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    restart({.seed = seed});
    stream = make_stream();
    std::vector<std::byte> from(100, std::byte{1}), to(100);
    std::byte* const device = allocate(100);
    while_held([&] {
      ASSERT_EQ(to_device(device, from, stream), cudaSuccess);
      from.assign(100, std::byte{2});
    });
    read.insert(first_byte(stream, device));
    while_held([&] {
      ASSERT_EQ(cudaMemcpyAsync(to.data(), device, 100, cudaMemcpyDeviceToHost, stream), cudaSuccess);
      written.insert(static_cast<int>(to[99]) == 0 ? 0 : 1);
    });
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  }

  EXPECT_EQ(read, (std::set<int>{1, 2}));
  EXPECT_EQ(written, (std::set<int>{0, 1}));
}

TEST_F(FakeCudaCopies, AreRefusedWhereTheyLeaveARegistration) {
  std::vector<std::byte> host(300);
  std::byte* const device = allocate(300);
  const auto copy = [&](std::size_t offset, std::size_t size) {
    return cudaMemcpyAsync(device, host.data() + offset, size, cudaMemcpyHostToDevice, stream);
  };
  ASSERT_EQ(cudaHostRegister(host.data() + 100, 100, 0), cudaSuccess);

  EXPECT_EQ(copy(100, 100), cudaSuccess);
  EXPECT_EQ(copy(0, 100), cudaSuccess);
  EXPECT_EQ(copy(200, 100), cudaSuccess);
  EXPECT_EQ(copy(99, 2), cudaSuccess) << "it begins in pageable memory";
  EXPECT_EQ(copy(0, 300), cudaSuccess);
  EXPECT_EQ(copy(199, 2), cudaErrorInvalidValue);
  EXPECT_EQ(copy(100, 101), cudaErrorInvalidValue);
  ASSERT_EQ(cudaHostRegister(host.data() + 200, 100, 0), cudaSuccess);
  EXPECT_EQ(copy(100, 200), cudaErrorInvalidValue) << "two registrations that touch are two";
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(FakeCudaCopies, AreRefusedOutsideOfAnAllocation) {
  std::vector<std::byte> host(101);
  std::byte *const device = allocate(100), *const other = allocate(100);

  EXPECT_EQ(to_device(device, host, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemsetAsync(device + 1, 0, 100, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(other, device, 101, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(host.data(), host.data(), 1, cudaMemcpyHostToDevice, stream),
            cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpyAsync(device, other, 1, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
  ASSERT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device, 0, 1, stream), cudaErrorInvalidValue);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
