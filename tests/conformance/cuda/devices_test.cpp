#include "fixture.hpp"

namespace penstock::test::cuda_semantics {
namespace {

using CudaContextsDeathTest = CudaProcess;
class CudaDevices : public CudaSemantics {
 protected:
  static int current() {
    int device = -1;
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    return device;
  }
};
using CudaTwoDevices = CudaDevicesSemantics;

TEST_F(CudaDevices, ThatDoNotExistAreRefused) {
  for (const int device : {-1, devices}) {
    cudaDeviceProp found{};
    EXPECT_EQ(cudaSetDevice(device), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetDeviceProperties(&found, device), cudaErrorInvalidDevice);
    EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
    EXPECT_EQ(current(), 0) << "it stays current";
  }
}

TEST_F(CudaDevices, HaveANameAndMemory) {
  for (int device = 0; device < devices; ++device) {
    EXPECT_NE(properties(device).name[0], '\0');
    EXPECT_GT(properties(device).totalGlobalMem, 0u);
  }
}

TEST_F(CudaDevices, AreCurrentForAThreadThatStartsWithTheFirst) {
  ASSERT_EQ(cudaSetDevice(devices - 1), cudaSuccess);

  std::thread([] { EXPECT_EQ(current(), 0); }).join();

  EXPECT_EQ(current(), devices - 1);
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
}

TEST_F(CudaContextsDeathTest, AreCreatedBySetDeviceForItsDeviceAlone) {
  expect_in_new_process([&] {
    int device = -1;
    (void)properties(0);
    EXPECT_EQ(cudaGetDevice(&device), cudaSuccess);
    EXPECT_EQ(cudaGetLastError(), cudaSuccess);
    for (int i = 0; i < devices; ++i) EXPECT_FALSE(has_context(i)) << "of device " << i << ", by questions";

    EXPECT_EQ(cudaSetDevice(devices - 1), cudaSuccess);

    for (int i = 0; i < devices; ++i) EXPECT_EQ(has_context(i), i == devices - 1) << "of device " << i;
  });
}

TEST_F(CudaContextsDeathTest, AreCreatedByOtherCallsForTheCurrentDevice) {
  expect_in_new_process([&] {
    cudaEvent_t event = nullptr;

    EXPECT_EQ(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), cudaSuccess);

    for (int i = 0; i < devices; ++i) EXPECT_EQ(has_context(i), i == 0) << "of device " << i;
  });
}

TEST_F(CudaTwoDevices, EventsAndKernelsRefuseStreamsOfTheOther) {
  const cudaStream_t first = make_stream();
  const cudaEvent_t event = make_event();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t second = make_stream();
  unsigned* const device = allocate();

  EXPECT_EQ(cudaEventRecord(event, second), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, cudaStream_t{}), cudaErrorInvalidResourceHandle)
      << "the default stream is that of the current device";
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);
  launch_write(device, 1, first);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidResourceHandle);

  EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess) << "whichever device is current";
  write(device, 1, second);
}

TEST_F(CudaTwoDevices, WaitsQueriesAndCopiesTakeHandlesOfTheOther) {
  Pages host(1);
  host.register_pages(0, 1);  // portable: the second device copies from it asynchronously too
  const cudaStream_t first = make_stream();
  const cudaEvent_t event = make_event();
  unsigned* const on_first = allocate();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t second = make_stream();
  const cudaEvent_t after = make_event();
  unsigned* const on_second = allocate();
  *host.words() = 1;
  Hold hold(first);

  ASSERT_EQ(cudaMemcpyAsync(on_first, host.words(), sizeof *on_first, cudaMemcpyHostToDevice, first),
            cudaSuccess);
  recorded(event, first);
  ASSERT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  ASSERT_EQ(cudaMemcpyAsync(on_second, host.words(), sizeof *on_second, cudaMemcpyHostToDevice, second),
            cudaSuccess);
  recorded(after, second);

  EXPECT_TRUE(stays_pending(event));
  EXPECT_TRUE(stays_pending(after));
  *host.words() = 2;
  hold.release();
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  EXPECT_EQ(value(on_second), 2u);
  EXPECT_EQ(value(on_first), 2u);
}

/// Between two devices with access to each other's memory.
class CudaTwoDevicesAsPeers : public CudaDevicesSemantics {
 protected:
  void SetUp() override {
    CudaDevicesSemantics::SetUp();
    if (IsSkipped()) return;
    int can = 0;
    ASSERT_EQ(cudaDeviceCanAccessPeer(&can, 1, 0), cudaSuccess);
    if (can == 0) GTEST_SKIP() << "the two devices have no peer-to-peer access";
  }
};

TEST_F(CudaTwoDevicesAsPeers, AreOtherDevicesThatExist) {
  int can = 1;
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceCanAccessPeer(&can, 0, devices), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(devices, 0), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

TEST_F(CudaTwoDevicesAsPeers, AccessEachOthersMemoryOnceThatIsEnabled) {
  unsigned* const on_first = allocate();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t second = make_stream();

  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 1), cudaErrorInvalidValue) << "there are no flags";
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
  EXPECT_EQ(cudaGetLastError(), cudaErrorPeerAccessAlreadyEnabled) << "it is an error that stays";

  write(on_first, 7, second);
  EXPECT_EQ(value(on_first), 7u);
}

TEST_F(CudaTwoDevices, MemoryIsFreedWhicheverIsCurrent) {
  void* memory = nullptr;
  ASSERT_EQ(cudaMalloc(&memory, 4), cudaSuccess);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);

  EXPECT_EQ(cudaFree(memory), cudaSuccess);
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
