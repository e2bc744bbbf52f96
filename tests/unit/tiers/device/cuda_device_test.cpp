// The adapter of CUDA devices, on a fake CUDA runtime.
#include "tiers/device/cuda_device.hpp"
#include "fake_cuda/fixture.hpp"

#include <sys/mman.h>
#include <penstock/base/units.hpp>

namespace penstock::tiers {
namespace {

using namespace test::fake_cuda;

class CudaDeviceOnFake : public FakeCuda {
 protected:
  static std::unique_ptr<Device> device(int number = 0) { return create_cuda_device(number).value(); }
  static cudaStream_t native(Stream& stream) { return static_cast<cudaStream_t>(stream.handle().native()); }
};

TEST_F(CudaDeviceOnFake, IsUnsupportedWithTheDriversReason) {
  restart({.driver = cudaErrorInsufficientDriver});

  const Error error = create_cuda_device(0).error();

  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_NE(error.message().find("driver version is insufficient"), std::string::npos) << error.message();
  restart({.devices = 0});
  EXPECT_EQ(create_cuda_device(0).error().code(), ErrorCode::unsupported);
  restart({.devices = 2});
  EXPECT_EQ(create_cuda_device(2).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(cuda_device_count().value(), 2);
}

TEST_F(CudaDeviceOnFake, WorksWhileAnotherDeviceIsCurrent) {
  restart({.devices = 2});
  auto second = device(1);
  int current = -1;

  auto stream = second->create_stream().value();
  auto event = second->create_event().value();
  const DeviceSpan span = second->allocate(1_MiB).value();

  EXPECT_TRUE(second->fill_zero(stream->handle(), span));
  EXPECT_TRUE(stream->record(*event));
  EXPECT_TRUE(event->synchronize());
  EXPECT_EQ(second->free_memory(), device(0)->free_memory() - 1_MiB);
  second->release(span);
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 0);
}

TEST_F(CudaDeviceOnFake, LeavesNoErrorOfAnEventThatIsNotReadyForTheNextKernel) {
  auto cuda = device();
  auto stream = cuda->create_stream().value();
  auto event = cuda->create_event().value();
  const Gate gate(native(*stream));
  ASSERT_TRUE(stream->record(*event));

  EXPECT_FALSE(event->query().value());

  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

/// Address space; only the pages that are used exist.
class Mapping {
 public:
  explicit Mapping(ByteCount size)
      : span_(static_cast<std::byte*>(mmap(nullptr, size.value(), PROT_READ | PROT_WRITE,
                                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)),
              size) {}
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(span_.data(), span_.size().value()); }
  [[nodiscard]] HostSpan span() const { return span_; }

 private:
  HostSpan span_;
};

TEST_F(CudaDeviceOnFake, CopiesPinnedMemoryAcrossTheSlabsInWhichItIsRegistered) {
  auto cuda = device();
  auto stream = cuda->create_stream().value();
  const Mapping memory(2_GiB + 1_MiB);
  const DeviceSpan span = cuda->allocate(8_KiB).value();
  ASSERT_TRUE(cuda->pin(memory.span()));
  EXPECT_EQ(live().registrations, 3u);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory.span().data());
  const ByteCount first_edge = 1_GiB - ByteCount(begin % (1_GiB).value());
  for (const ByteCount edge : {first_edge, first_edge + 1_GiB}) {
    const HostSpan across = memory.span().subspan(edge - 5_KiB, 8_KiB);
    std::memset(across.data(), 7, 8192);
    {
      const Gate gate(native(*stream));
      ASSERT_TRUE(cuda->copy_to_device(stream->handle(), across, span));
      std::memset(across.data(), 8, 8192);
    }
    ASSERT_TRUE(stream->synchronize());
    for (const int at : {0, 5119, 5120, 8191}) {
      EXPECT_EQ(bytes(reinterpret_cast<void*>(span.address()), 8192)[at], std::byte{8})
          << "it is asynchronous";
    }

    ASSERT_TRUE(cuda->fill_zero(stream->handle(), span));
    ASSERT_TRUE(cuda->copy_to_host(stream->handle(), span, across));
    ASSERT_TRUE(stream->synchronize());
    for (const int at : {0, 5119, 5120, 8191}) EXPECT_EQ(across.data()[at], std::byte{0});
  }
  cuda->unpin(memory.span());
  EXPECT_EQ(live().registrations, 0u);
  cuda->release(span);
}

TEST_F(CudaDeviceOnFake, LeavesNothingRegisteredIfItCannotPin) {
  auto cuda = device();
  const Mapping memory(3_GiB);
  fail_call("cudaHostRegister", 3, cudaErrorMemoryAllocation);

  EXPECT_FALSE(cuda->pin(memory.span()));

  EXPECT_EQ(live().registrations, 0u);
  ASSERT_TRUE(cuda->pin(memory.span()));
  cuda->unpin(memory.span());
}

TEST_F(CudaDeviceOnFake, ReportsThatItsContextIsLost) {
  auto cuda = device();
  auto stream = cuda->create_stream().value();
  auto event = cuda->create_event().value();
  fail_call("cudaMemsetAsync", 1, cudaErrorIllegalAddress);
  const DeviceSpan span = cuda->allocate(4_KiB).value();

  EXPECT_EQ(cuda->fill_zero(stream->handle(), span).error().code(), ErrorCode::io);

  EXPECT_EQ(stream->synchronize().error().code(), ErrorCode::io);
  EXPECT_EQ(event->query().error().code(), ErrorCode::io);
  EXPECT_EQ(cuda->allocate(4_KiB).error().code(), ErrorCode::io);
  EXPECT_EQ(cuda->free_memory(), ByteCount());
}

TEST_F(CudaDeviceOnFake, FreesWhatItMade) {
  {
    auto cuda = device();
    auto stream = cuda->create_stream().value();
    auto event = cuda->create_event().value();
    const DeviceSpan span = cuda->allocate(4_KiB).value();
    EXPECT_EQ(live(), (Live{.allocations = 1, .streams = 1, .events = 1}));
    cuda->release(span);
  }

  EXPECT_EQ(live(), Live{});
}

}  // namespace
}  // namespace penstock::tiers
