#include "fake_cuda/fixture.hpp"

#include <atomic>
#include <chrono>
#include <thread>

namespace penstock::test::fake_cuda {
namespace {

class FakeCudaErrors : public FakeCuda {};

TEST_F(FakeCudaErrors, TellThatThereIsNoDeviceOrNoDriver) {
  int count = 0;
  restart({.devices = 0});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  restart({.driver = cudaErrorInsufficientDriver});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorInsufficientDriver);
  restart({.devices = 3});
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 3);
  EXPECT_EQ(cudaSetDevice(3), cudaErrorInvalidDevice);
}

TEST_F(FakeCudaErrors, RefuseHandlesOfAnotherDevice) {
  restart({.devices = 2});
  const cudaStream_t first = make_stream();
  const cudaEvent_t event = make_event();
  std::byte* const memory = allocate(8);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t second = make_stream();

  EXPECT_EQ(cudaEventRecord(event, second), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, first), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(second, event, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(memory, 0, 8, second), cudaSuccess);
}

TEST_F(FakeCudaErrors, AndTheCurrentDeviceBelongToAThread) {
  restart({.devices = 2});
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  ASSERT_EQ(cudaFree(this), cudaErrorInvalidValue);

  const auto [device, error] = std::async(std::launch::async, [] {
                                 int mine = -1;
                                 EXPECT_EQ(cudaGetDevice(&mine), cudaSuccess);
                                 return std::pair(mine, cudaGetLastError());
                               }).get();

  EXPECT_EQ(device, 0);
  EXPECT_EQ(error, cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
}

TEST_F(FakeCudaErrors, StayUntilTheyAreRead) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  Gate gate(stream);
  ASSERT_EQ(cudaEventRecord(event, stream), cudaSuccess);

  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  (void)make_event();  // a call that succeeds does not clear it

  EXPECT_EQ(cudaGetLastError(), cudaErrorNotReady);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(FakeCudaErrors, AreReturnedByTheCallThatATestChooses) {
  fail_call("cudaEventCreateWithFlags", 2, cudaErrorMemoryAllocation);
  const cudaEvent_t first = make_event();
  cudaEvent_t second = nullptr;

  EXPECT_EQ(cudaEventCreateWithFlags(&second, 0), cudaErrorMemoryAllocation);

  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_NE(first, make_event());
  EXPECT_EQ(live().events, 2u);
}

TEST_F(FakeCudaErrors, ThatDestroyTheContextStayForItsDevice) {
  restart({.devices = 2});
  const cudaStream_t stream = make_stream();
  Gate gate(stream);
  bool ran = false;
  ASSERT_EQ(enqueue(stream, [&] { ran = true; }), cudaSuccess);
  fail_call("cudaMemGetInfo", 1, cudaErrorECCUncorrectable);
  std::size_t free = 0, total = 0;

  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaErrorECCUncorrectable);
  gate.open();

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaGetLastError(), cudaErrorECCUncorrectable);
  EXPECT_EQ(cudaFree(nullptr), cudaErrorECCUncorrectable);
  restart();
  EXPECT_FALSE(ran);
}

TEST_F(FakeCudaErrors, ThatDestroyTheContextAreReportedWhenNothingRunsAnyMore) {
  const cudaStream_t stream = make_stream();
  std::promise<void> started;
  std::atomic<bool> ended = false;
  ASSERT_EQ(enqueue(stream,
                    [&] {
                      started.set_value();
                      std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      ended = true;
                    }),
            cudaSuccess);
  started.get_future().wait();
  fail_call("cudaStreamSynchronize", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);

  EXPECT_EQ(cudaFree(nullptr), cudaErrorIllegalAddress);

  EXPECT_TRUE(ended);
}

TEST_F(FakeCudaErrors, CountAsCalls) {
  const Counts before = count();
  std::byte* const memory = allocate(1);
  (void)make_stream();
  (void)make_event();
  (void)make_event();
  EXPECT_EQ(cudaFree(memory), cudaSuccess);
  EXPECT_EQ(cudaFree(memory), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);

  const Counts calls = count() - before;

  EXPECT_EQ(calls.allocations(), 1u);
  EXPECT_EQ(calls.stream_creations(), 1u);
  EXPECT_EQ(calls.event_creations(), 2u);
  EXPECT_EQ(calls.device_synchronizations(), 3u);
  EXPECT_EQ(calls.of("cudaMemcpyAsync"), 0u);
}

}  // namespace
}  // namespace penstock::test::fake_cuda
