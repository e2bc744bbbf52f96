#include "fake_cuda/fixture.hpp"
#include "kit/guard_pages.hpp"

#include <penstock/base/units.hpp>

namespace penstock::test::fake_cuda {
namespace {

class FakeCudaMemory : public FakeCuda {};
using FakeCudaMemoryDeathTest = FakeCudaMemory;

TEST_F(FakeCudaMemoryDeathTest, CannotBeAccessedByTheHost) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_DEATH(
      {
        const volatile std::byte* const address = allocate(1);
        (void)*address;
      },
      "");
}

TEST_F(FakeCudaMemory, IsCountedAndRunsOut) {
  restart({.memory = 1 << 20});
  std::size_t free = 0, total = 0;
  std::byte* const first = allocate(600'000);
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, 1u << 20);
  EXPECT_LE(free, (1u << 20) - 600'000);

  void* second = first;
  EXPECT_EQ(cudaMalloc(&second, 600'000), cudaErrorMemoryAllocation);
  EXPECT_EQ(second, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaFree(first), cudaSuccess);

  EXPECT_EQ(cudaMalloc(&second, 600'000), cudaSuccess);
  EXPECT_EQ(live().allocations, 1u);
}

TEST_F(FakeCudaMemory, IsFreedOnceAndByItsFirstAddress) {
  std::byte* const address = allocate(100);
  std::byte foreign[16];

  EXPECT_EQ(cudaFree(address + 1), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(foreign), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaFree(address), cudaSuccess);
  EXPECT_EQ(cudaFree(address), cudaErrorInvalidValue);
}

TEST_F(FakeCudaMemory, IsFreedWhenTheDeviceHasRun) {
  const cudaStream_t stream = make_stream();
  std::byte* const address = allocate(100);
  bool ran = false;
  Gate gate(stream);
  ASSERT_EQ(enqueue(stream, [&] { ran = true; }), cudaSuccess);
  const auto opened = std::async(std::launch::async, [&] { gate.open(); });

  ASSERT_EQ(cudaFree(address), cudaSuccess);

  EXPECT_TRUE(ran);
}

TEST_F(FakeCudaMemory, IsOnlyForItsDeviceOnAMachineWithoutPeerAccess) {
  restart({.devices = 2, .peer_access = false});
  int can = 1;

  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, 1), cudaSuccess);
  EXPECT_EQ(can, 0);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(1, 0), cudaErrorPeerAccessUnsupported);
}

TEST_F(FakeCudaMemory, OfTheHostIsRegisteredOnce) {
  std::vector<std::byte> memory(8192);
  std::byte* const begin = memory.data();

  EXPECT_EQ(cudaHostRegister(begin, 4096, cudaHostRegisterPortable), cudaSuccess);
  EXPECT_EQ(cudaHostRegister(begin, 4096, cudaHostRegisterPortable), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostRegister(begin + 4095, 2, cudaHostRegisterPortable),
            cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(cudaHostRegister(begin + 4096, 4096, cudaHostRegisterPortable), cudaSuccess);
  EXPECT_EQ(live().registrations, 2u);

  EXPECT_EQ(cudaHostUnregister(begin + 1), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaHostUnregister(begin), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(begin), cudaErrorHostMemoryNotRegistered);
}

TEST_F(FakeCudaMemory, OfTheHostThatDoesNotExistIsNotRegistered) {
  const GuardedBytes bytes(4_KiB);
  std::byte* const begin = bytes.span().data();

  EXPECT_EQ(cudaHostRegister(begin, 4097, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(begin - 8192, 4096, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(allocate(1), 1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(nullptr, 1, 0), cudaErrorInvalidValue);
  EXPECT_EQ(cudaHostRegister(begin, 4096, 0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(begin), cudaSuccess);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
