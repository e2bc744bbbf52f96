// The adapter of CUDA devices, on a fake CUDA runtime.
#include "tiers/device/cuda_device.hpp"
#include "fake_cuda/fixture.hpp"

#include <penstock/base/units.hpp>
#include <penstock/tiers/device/host_device.hpp>

#include <sys/mman.h>

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

TEST_F(CudaDeviceOnFake, NamesARemedyWhereThereIsNoDeviceToUse) {
  const auto expect_remedy = [](const Error& error, const std::string& words) {
    EXPECT_NE(error.message().find(words, error.message().find("\n  try ")), std::string::npos)
        << error.message();
  };
  restart({.driver = cudaErrorInsufficientDriver});
  expect_remedy(create_cuda_device(0).error(), "load the NVIDIA driver");
  restart({.devices = 0});
  expect_remedy(create_cuda_device(0).error(), "CUDA_VISIBLE_DEVICES");
  restart({.devices = 2});
  expect_remedy(create_cuda_device(2).error(), "nvidia-smi -L");
  expect_remedy(wrap_cuda_stream(2, make_stream()).error(), "nvidia-smi -L");
  expect_remedy(wrap_cuda_stream(1, make_stream()).error(), "the device of this rank");
}

TEST_F(CudaDeviceOnFake, ReadsATimeOnceAStreamHasPassedTheMark) {
  const auto clock = device()->create_clock().value();
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const auto handle = StreamHandle::from_native(stream);
  std::promise<void> open;
  const StreamClock::Mark before = clock->mark(handle);
  ASSERT_EQ(enqueue(stream, [&] { open.get_future().wait(); }), cudaSuccess);
  const StreamClock::Mark after = clock->mark(handle);

  EXPECT_FALSE(clock->passed(after));
  open.set_value();
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);

  ASSERT_TRUE(clock->passed(before) && clock->passed(after));
  EXPECT_LE(*clock->passed(before), *clock->passed(after));
  EXPECT_TRUE(clock->status());
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

/// On a thread whose current device is 0.
template <class Call>
void on_new_thread(const Call& call) {
  std::async(std::launch::async, call).get();
}

TEST_F(CudaDeviceOnFake, WorksWhileAnotherDeviceIsCurrent) {
  restart({.devices = 2});
  auto second = device(1);
  auto stream = second->create_stream().value();
  auto event = second->create_event().value();
  const DeviceSpan span = second->allocate(1_MiB).value();
  std::vector<std::byte> host(1 << 20);
  const HostSpan memory(host.data(), 1_MiB);

  on_new_thread([&] { EXPECT_TRUE(second->pin(memory)); });
  on_new_thread([&] { EXPECT_TRUE(second->fill_zero(stream->handle(), span)); });
  on_new_thread([&] { EXPECT_TRUE(second->copy_to_host(stream->handle(), span, memory)); });
  on_new_thread([&] { EXPECT_TRUE(stream->record(*event)); });
  on_new_thread([&] { EXPECT_TRUE(stream->wait(*event)); });
  on_new_thread([&] { EXPECT_TRUE(event->query()); });
  on_new_thread([&] { EXPECT_TRUE(stream->synchronize()); });
  on_new_thread([&] { EXPECT_EQ(second->free_memory(), 1_GiB - 1_MiB); });
  on_new_thread([&] { second->unpin(memory); });
  on_new_thread([&] { second->release(span); });
  on_new_thread([&] { stream.reset(); });
  on_new_thread([&] { event.reset(); });

  EXPECT_EQ(contexts(), std::vector<int>{1});
}

TEST_F(CudaDeviceOnFake, IsGivenAccessToTheMemoryOfAPeer) {
  restart({.devices = 2});
  const auto first = device(0), second = device(1), second_again = device(1);
  EXPECT_EQ(first->cuda_ordinal(), 0);
  EXPECT_EQ(second->cuda_ordinal(), 1);

  EXPECT_TRUE(second->access_peer(*first));
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled)
      << "of device 1, now current";
  EXPECT_EQ(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled);

  EXPECT_TRUE(second_again->access_peer(*first)) << "CUDA gives it once for each pair of devices";
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaDeviceOnFake, HasNothingToDoForTheMemoryOfTheSameDevice) {
  restart({.peer_access = false});
  const auto one = device(), other = device();

  EXPECT_TRUE(one->access_peer(*one));
  EXPECT_TRUE(one->access_peer(*other));

  EXPECT_EQ(count().of("cudaDeviceEnablePeerAccess"), 0u);
}

TEST_F(CudaDeviceOnFake, NamesBothDevicesWhereItCannotAccessTheMemoryOfAnother) {
  restart({.devices = 2, .peer_access = false});
  const auto first = device(0), second = device(1);
  const auto expect_names = [](const Error& error, ErrorCode code, const std::string& peer) {
    EXPECT_EQ(error.code(), code);
    for (const std::string& part : {std::string("CUDA device 1 (fake CUDA device)"), peer}) {
      EXPECT_NE(error.message().find(part), std::string::npos) << error.message();
    }
  };

  const Error refused = second->access_peer(*first).error();
  expect_names(refused, ErrorCode::unsupported, "CUDA device 0 (fake CUDA device)");
  EXPECT_NE(refused.message().find("NCCL"), std::string::npos) << refused.message();

  HostDevice host({.memory = 1_MiB});
  expect_names(second->access_peer(host).error(), ErrorCode::unsupported, "access to host");
  EXPECT_EQ(count().of("cudaDeviceEnablePeerAccess"), 0u);

  restart({.devices = 2});
  fail_call("cudaDeviceEnablePeerAccess", 1, cudaErrorTooManyPeers);
  expect_names(second->access_peer(*first).error(), ErrorCode::io, "CUDA device 0 (fake CUDA device)");
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaDeviceOnFake, LeavesItsDeviceCurrent) {
  restart({.devices = 2});
  auto second = device(1);
  int current = -1;
  ASSERT_TRUE(second->create_event());
  EXPECT_EQ(cudaGetDevice(&current), cudaSuccess);
  EXPECT_EQ(current, 1);

  const std::uint64_t before = count().of("cudaSetDevice");
  ASSERT_TRUE(second->create_event());
  EXPECT_EQ(count().of("cudaSetDevice"), before);
}

TEST_F(CudaDeviceOnFake, UsesAStreamOfTheCaller) {
  auto cuda = device();
  const DeviceSpan span = cuda->allocate(4_KiB).value();
  for (const cudaStream_t native : {make_stream(), cudaStream_t{}, cudaStreamLegacy}) {
    auto stream = wrap_cuda_stream(0, native).value();
    auto event = cuda->create_event().value();
    EXPECT_EQ(stream->handle().native(), native);

    EXPECT_TRUE(cuda->fill_zero(stream->handle(), span));
    EXPECT_TRUE(stream->record(*event));
    EXPECT_TRUE(stream->synchronize());
    EXPECT_TRUE(event->query().value());

    const Gate gate(native);
    stream.reset();  // must not wait
  }
  EXPECT_EQ(live().streams, 1u);
  cuda->release(span);
}

TEST_F(CudaDeviceOnFake, RefusesAStreamOfAnotherDevice) {
  restart({.devices = 2});
  const cudaStream_t first = make_stream();

  const Error error = wrap_cuda_stream(1, first).error();

  EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
  EXPECT_NE(error.message().find("one of device 1"), std::string::npos) << error.message();
  EXPECT_TRUE(wrap_cuda_stream(0, first));
  EXPECT_EQ(wrap_cuda_stream(2, first).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(live().events, 0u);
}

TEST_F(CudaDeviceOnFake, SaysWhatToDoAboutAFailure) {
  const struct {
    cudaError_t failure;
    ErrorCode code;
    const char* word;
  } failures[] = {{cudaErrorMemoryAllocation, ErrorCode::budget_too_small, "device budget"},
                  {cudaErrorECCUncorrectable, ErrorCode::io, "dmesg"},
                  {cudaErrorLaunchFailure, ErrorCode::io, "compute-sanitizer"},
                  {cudaErrorInvalidValue, ErrorCode::io, "CUDA: invalid argument"}};
  for (const auto& [failure, code, word] : failures) {
    restart();
    auto cuda = device();
    fail_call("cudaMalloc", 1, failure);

    const Error error = cuda->allocate(1_MiB).error();

    EXPECT_EQ(error.code(), code) << error.message();
    EXPECT_NE(error.message().find(word), std::string::npos) << error.message();
  }
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

TEST_F(CudaDeviceOnFake, LeavesNoErrorOfACallThatItIgnoresForTheNextKernel) {
  for (const char* const function : {"cudaEventDestroy", "cudaFree", "cudaHostUnregister", "cudaMemGetInfo",
                                     "cudaStreamDestroy", "cudaStreamSynchronize"}) {
    restart();
    {
      auto cuda = device();
      auto stream = cuda->create_stream().value();
      auto event = cuda->create_event().value();
      std::vector<std::byte> memory(4096);
      const HostSpan host{std::span(memory)};
      ASSERT_TRUE(cuda->pin(host));
      const DeviceSpan span = cuda->allocate(4_KiB).value();
      fail_call(function, 1, cudaErrorInvalidValue);

      (void)cuda->free_memory();
      cuda->unpin(host);
      cuda->release(span);
    }

    EXPECT_EQ(count().of(function), 1u);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess) << function;
  }
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
