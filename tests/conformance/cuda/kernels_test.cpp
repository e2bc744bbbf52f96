#include "fixture.hpp"

namespace penstock::test::cuda_semantics {
namespace {

class CudaKernels : public CudaSemantics {};

TEST_F(CudaKernels, RunWhenTheStreamGetsThere) {
  const cudaStream_t stream = make_stream();
  unsigned* const device = allocate();
  ASSERT_EQ(cudaMemsetAsync(device, 0, sizeof *device, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  Hold hold(stream);

  write(device, 9, stream);

  EXPECT_TRUE(hold.holds());
  const cudaStream_t other = make_stream();
  Pages result(1);
  result.register_pages(0, 1);
  copy_out(result.words(), device, other);
  ASSERT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(*result.words(), 0u);
  hold.release();
  EXPECT_EQ(value(device), 9u);
}

// The fixture has asked for the kernel's attributes. A kernel that is not loaded could wait for the device.
TEST_F(CudaKernels, ThatFuncGetAttributesHasLoadedAreLaunchedWithoutAWait) {
  const cudaStream_t held = make_stream(), other = make_stream();
  unsigned* const device = allocate();
  const Hold hold(held);

  write(device, 1, other);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);

  EXPECT_TRUE(hold.holds());
}

TEST_F(CudaKernels, WithoutCodeForTheDeviceAreRefusedWhenAskedForOrLaunched) {
  if (properties(0).major < 8) GTEST_SKIP() << "the device runs code for compute capability 7.5";
  const auto missing = [](cudaError_t error) {
    return error == cudaErrorNoKernelImageForDevice || error == cudaErrorInvalidDeviceFunction;
  };
  const cudaStream_t stream = make_stream();
  cudaFuncAttributes attributes{};

  const cudaError_t asked = cudaFuncGetAttributes(&attributes, old_kernel());
  EXPECT_TRUE(missing(asked)) << cudaGetErrorString(asked);
  EXPECT_EQ(cudaGetLastError(), asked);
  launch_old_kernel(stream);
  const cudaError_t launched = cudaGetLastError();
  EXPECT_TRUE(missing(launched)) << cudaGetErrorString(launched);

  write(allocate(), 1, stream);  // others run
}

}  // namespace
}  // namespace penstock::test::cuda_semantics
