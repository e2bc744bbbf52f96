#include "fixture.hpp"

#include <sys/wait.h>

namespace penstock::test::cuda_semantics {
namespace {

class CudaErrors : public CudaSemantics {
 protected:
  static void fail() { EXPECT_EQ(cudaSetDevice(-1), cudaErrorInvalidDevice); }
};
using CudaErrorsDeathTest = CudaErrors;

TEST_F(CudaErrors, StayUntilTheyAreRead) {
  fail();
  (void)make_event();  // a call that succeeds does not clear it

  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(CudaErrors, ThatNobodyReadAreTakenForThoseOfTheNextKernel) {
  const cudaStream_t stream = make_stream();
  unsigned* const device = allocate();
  fail();

  launch_write(device, 3, stream);

  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
  EXPECT_EQ(value(device), 3u) << "the kernel runs all the same";
}

TEST_F(CudaErrors, BelongToTheirThread) {
  fail();

  std::thread([] { EXPECT_EQ(cudaGetLastError(), cudaSuccess); }).join();

  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDevice);
}

// CUDA says that cudaErrorNotReady "is not actually an error", but not whether it is the last error. Frameworks clear
// it (PyTorch's pull request 18584), and so does the library; the fake keeps it.
TEST_F(CudaErrors, IncludeNotReadyOrNotAndOneReadClearsIt) {
  const cudaStream_t stream = make_stream();
  const cudaEvent_t event = make_event();
  const Hold hold(stream);
  recorded(event, stream);

  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);

  const cudaError_t last = cudaGetLastError();
  RecordProperty("last_error", cudaGetErrorString(last));
  EXPECT_TRUE(last == cudaErrorNotReady || last == cudaSuccess) << cudaGetErrorString(last);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  write(allocate(), 1, stream);
}

// A grid without blocks is cudaErrorInvalidValue on driver 580, an invalid configuration on others. The fake says the
// first.
TEST_F(CudaErrors, OfALaunchAreTheLastErrorAndDoNotStay) {
  const cudaStream_t stream = make_stream();
  unsigned* const device = allocate();

  launch_write(device, 1, stream, /*blocks=*/0);

  const cudaError_t error = cudaGetLastError();
  EXPECT_TRUE(error == cudaErrorInvalidValue || error == cudaErrorInvalidConfiguration)
      << cudaGetErrorString(error);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  write(device, 2, stream);
  EXPECT_EQ(value(device), 2u);
}

/// Expects that a call, named by its text, returns the error that destroyed the context.
#define EXPECT_LOST(call) EXPECT_EQ(call, cudaErrorIllegalAddress)

TEST_F(CudaErrorsDeathTest, OfRunningKernelsAreReturnedByEveryLaterCall) {
  expect_in_new_process([&] {
    const Pages host(1);
    const cudaStream_t stream = make_stream(), other = make_stream();
    const cudaEvent_t event = make_event();
    unsigned* const device = allocate();
    {
      const Hold hold(stream);
      write(nullptr, 1, stream);  // the launch itself succeeds
      recorded(event, stream);
    }

    EXPECT_LOST(cudaStreamSynchronize(stream));

    cudaStream_t created_stream = nullptr;
    cudaEvent_t created_event = nullptr;
    void* memory = nullptr;
    std::size_t free = 0, total = 0;
    unsigned word = 0;
    for (int round = 0; round < 2; ++round) {
      EXPECT_LOST(cudaStreamSynchronize(other));
      EXPECT_LOST(cudaDeviceSynchronize());
      EXPECT_LOST(cudaEventRecord(event, other));
      EXPECT_LOST(cudaEventQuery(event));
      EXPECT_LOST(cudaEventSynchronize(event));
      EXPECT_LOST(cudaStreamWaitEvent(other, event, 0));
      EXPECT_LOST(cudaMalloc(&memory, 4));
      EXPECT_LOST(cudaMemGetInfo(&free, &total));
      EXPECT_LOST(cudaMemsetAsync(device, 0, 4, other));
      EXPECT_LOST(cudaMemcpyAsync(&word, device, 4, cudaMemcpyDeviceToHost, other));
      EXPECT_LOST(cudaHostRegister(host.page(0), host.size(), cudaHostRegisterPortable));
      EXPECT_LOST(cudaStreamCreateWithFlags(&created_stream, cudaStreamNonBlocking));
      EXPECT_LOST(cudaEventCreateWithFlags(&created_event, cudaEventDisableTiming));
      EXPECT_LOST(cudaFree(device));
      EXPECT_LOST(cudaGetLastError());
      launch_write(device, 1, other);
      EXPECT_LOST(cudaGetLastError());
    }
    std::thread([other] { EXPECT_LOST(cudaStreamSynchronize(other)); }).join();
  });
}

TEST(CudaErrorsWithoutDevicesDeathTest, AreThatThereIsNone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int status = 0;
  const auto exited = [&status](int result) {
    status = WEXITSTATUS(result);
    return WIFEXITED(result);
  };
  EXPECT_EXIT(
      {
        hide_devices();
        int count = 0;
        std::_Exit(cudaGetDeviceCount(&count));
      },
      exited, "");

  if (status == cudaErrorInsufficientDriver) GTEST_SKIP() << "no CUDA driver";
  EXPECT_EQ(status, cudaErrorNoDevice);
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
