#include "fixture.hpp"

#include <cstdint>

namespace penstock::test::cuda_semantics {
namespace {

class CudaMemory : public CudaSemantics {
 protected:
  static std::size_t free_memory() {
    std::size_t free = 0, total = 0;
    EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
    EXPECT_LE(free, total);
    return free;
  }
  static cudaError_t register_range(std::byte* address, std::size_t size) {
    return cudaHostRegister(address, size, cudaHostRegisterPortable);
  }
  /// The result of a call, which is also the last error. Reads it.
  static cudaError_t read(cudaError_t result) {
    EXPECT_EQ(cudaGetLastError(), result);
    return result;
  }
};

TEST_F(CudaMemory, IsFreedWhenTheDeviceHasRun) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);
  Hold hold(stream);
  recorded(event, stream);
  hold.release_after(milliseconds(50));

  EXPECT_EQ(cudaFree(memory), cudaSuccess);

  EXPECT_EQ(cudaEventQuery(event), cudaSuccess) << "cudaFree did not wait for the stream";
}

TEST_F(CudaMemory, ThatIsFreeShrinksByWhatIsAllocated) {
  constexpr std::size_t size = 256 << 20;
  for (int attempt = 1;; ++attempt) {  // other processes may free memory meanwhile
    const std::size_t before = free_memory();
    void* memory = nullptr;
    ASSERT_EQ(cudaMalloc(&memory, size), cudaSuccess);
    const std::size_t between = free_memory();
    ASSERT_EQ(cudaFree(memory), cudaSuccess);
    const std::size_t after = free_memory();
    if (between + size <= before && after >= between + size) return;
    ASSERT_LT(attempt, 5) << before << " B free, then " << between << ", then " << after;
  }
}

TEST_F(CudaMemory, AllocationsBeginAtMultiplesOf256Bytes) {
  for (const std::size_t size : {1u, 255u, 257u, 5000u}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(allocate(size)) % 256, 0u) << size;
  }
}

TEST_F(CudaMemory, OfMoreThanExistsIsRefusedAndTheNextAllocationSucceeds) {
  void* memory = nullptr;

  EXPECT_EQ(cudaMalloc(&memory, std::size_t{1} << 50), cudaErrorMemoryAllocation);

  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_GT(free_memory(), 0u);
  write(allocate(), 1, make_stream());
}

TEST_F(CudaMemory, OfZeroBytesIsNone) {
  void* memory = this;
  EXPECT_EQ(cudaMalloc(&memory, 0), cudaSuccess);
  EXPECT_EQ(memory, nullptr);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
}

TEST_F(CudaMemory, IsFreedOnceAndByItsFirstAddress) {
  void* memory = nullptr;
  std::byte foreign[16];
  ASSERT_EQ(cudaMalloc(&memory, 1 << 20), cudaSuccess);

  EXPECT_EQ(read(cudaFree(static_cast<std::byte*>(memory) + 256)), cudaErrorInvalidValue);
  EXPECT_EQ(read(cudaFree(foreign)), cudaErrorInvalidValue);
  EXPECT_EQ(read(cudaFree(memory)), cudaSuccess);
  EXPECT_EQ(read(cudaFree(memory)), cudaErrorInvalidValue);
}

TEST_F(CudaMemory, OfTheHostIsRegisteredOnce) {
  Pages host(4);
  const std::size_t page = Pages::page_size();
  host.register_pages(1, 2);

  EXPECT_EQ(read(register_range(host.page(1), 2 * page)), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(read(register_range(host.page(0), 2 * page)), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(read(register_range(host.page(2), 2 * page)), cudaErrorHostMemoryAlreadyRegistered);
  EXPECT_EQ(read(register_range(host.page(0), 4 * page)), cudaErrorHostMemoryAlreadyRegistered);

  host.register_pages(0, 1);
  host.register_pages(3, 1);  // neighbours are no part of it
}

TEST_F(CudaMemory, OfTheHostIsKnownToCudaWhileItIsRegistered) {
  const auto type_of = [](const void* address) {
    cudaPointerAttributes attributes{};
    EXPECT_EQ(read(cudaPointerGetAttributes(&attributes, address)), cudaSuccess);
    return attributes.type;
  };
  Pages host(3);
  EXPECT_EQ(type_of(host.page(1)), cudaMemoryTypeUnregistered);
  ASSERT_EQ(register_range(host.page(1), Pages::page_size()), cudaSuccess);

  EXPECT_EQ(type_of(host.page(0)), cudaMemoryTypeUnregistered);
  EXPECT_EQ(type_of(host.page(1)), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(host.page(1) + Pages::page_size() - 1), cudaMemoryTypeHost);
  EXPECT_EQ(type_of(host.page(2)), cudaMemoryTypeUnregistered);
  EXPECT_EQ(type_of(allocate()), cudaMemoryTypeDevice);
  ASSERT_EQ(cudaHostUnregister(host.page(1)), cudaSuccess);
  EXPECT_EQ(type_of(host.page(1)), cudaMemoryTypeUnregistered);
}

TEST_F(CudaMemory, OfTheHostIsUnregisteredByItsFirstAddress) {
  Pages host(2);
  ASSERT_EQ(register_range(host.page(0), host.size()), cudaSuccess);

  EXPECT_NE(read(cudaHostUnregister(host.page(1))), cudaSuccess);
  EXPECT_EQ(read(cudaHostUnregister(host.page(0))), cudaSuccess);
  EXPECT_EQ(read(cudaHostUnregister(host.page(0))), cudaErrorHostMemoryNotRegistered);

  host.register_pages(0, 2);  // it can be registered again
}

TEST_F(CudaMemory, ThatWasNeverRegisteredCannotBeUnregistered) {
  Pages host(1);

  EXPECT_EQ(read(cudaHostUnregister(host.page(0))), cudaErrorHostMemoryNotRegistered);
}

// As of more memory than the machine can pin, which no test can ask for without harm.
TEST_F(CudaMemory, OfTheHostThatCannotBePinnedIsRefusedAndNothingIsRegistered) {
  Pages host(2);
  ASSERT_EQ(::mprotect(host.page(1), Pages::page_size(), PROT_NONE), 0);

  const cudaError_t error = read(register_range(host.page(0), host.size()));

  EXPECT_NE(error, cudaSuccess);
  RecordProperty("returned", cudaGetErrorString(error));
  EXPECT_NE(read(cudaHostUnregister(host.page(0))), cudaSuccess);
  host.register_pages(0, 1);
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
