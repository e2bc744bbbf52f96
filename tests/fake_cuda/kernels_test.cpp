#include "fake_cuda/fixture.hpp"
#include "kernels/cuda_compute.hpp"

#include <array>

namespace penstock::test::fake_cuda {
namespace {

class FakeCudaKernels : public FakeCuda {
 protected:
  static DeviceTensor floats(const std::byte* address, std::size_t count) {
    return {DeviceSpan(DeviceAddress(reinterpret_cast<std::uintptr_t>(address)), ByteCount(4 * count)),
            DType::fp32};
  }
  static Result<void> halve(cudaStream_t stream, const DeviceTensor& x, int device = 0) {
    PENSTOCK_TRY_ASSIGN(const auto compute, kernels::make_cuda_compute(device));
    return compute->scale(StreamHandle::from_native(stream), x, 0.5f);
  }
};

TEST_F(FakeCudaKernels, RunWhenTheirStreamGetsThere) {
  const cudaStream_t stream = make_stream();
  std::byte* const device = allocate(400);
  std::array<float, 100> values;
  values.fill(3.0f);
  Gate gate(stream);
  ASSERT_EQ(cudaMemcpyAsync(device, values.data(), 400, cudaMemcpyHostToDevice, stream), cudaSuccess);

  ASSERT_TRUE(halve(stream, floats(device, 100)));

  gate.open();
  ASSERT_EQ(cudaMemcpyAsync(values.data(), device, 400, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  for (const float value : values) EXPECT_EQ(value, 1.5f);
  EXPECT_EQ(count().of("cudaLaunchKernel"), 1u);
}

TEST_F(FakeCudaKernels, FaultOutsideOfAnAllocation) {
  const cudaStream_t stream = make_stream();
  std::byte* const device = allocate(400);
  {
    const Gate gate(stream);
    ASSERT_TRUE(halve(stream, floats(device, 101)));
  }

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
  EXPECT_EQ(halve(stream, floats(device, 1)).error().code(), ErrorCode::io);
}

TEST_F(FakeCudaKernels, FaultInTheMemoryOfTheHostOrOfAnotherDevice) {
  for (const bool host : {true, false}) {
    restart({.devices = 2});
    std::array<std::byte, 4> on_host{};
    const std::byte* const memory = host ? on_host.data() : allocate(4);
    ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
    const cudaStream_t stream = make_stream();
    {
      const Gate gate(stream);
      ASSERT_TRUE(halve(stream, floats(memory, 1), 1));
    }

    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  }
}

TEST_F(FakeCudaKernels, AccessAnotherDeviceOnceTheirsMay) {
  restart({.devices = 2});
  std::byte* const memory = allocate(4);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const cudaStream_t stream = make_stream();

  EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);

  ASSERT_TRUE(halve(stream, floats(memory, 1), 1));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

TEST_F(FakeCudaKernels, FaultWhereATestChooses) {
  const cudaStream_t stream = make_stream();
  std::byte* const device = allocate(400);
  fail_kernel(2);

  ASSERT_TRUE(halve(stream, floats(device, 100)));
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  {
    const Gate gate(stream);
    ASSERT_TRUE(halve(stream, floats(device, 100)));
  }

  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
}

TEST_F(FakeCudaKernels, AreLoadedBeforeAnyIsLaunched) {
  const auto compute = kernels::make_cuda_compute(0).value();
  const StreamHandle stream = StreamHandle::from_native(make_stream());
  const auto tensor = [](DType dtype) {
    const DeviceAddress address{reinterpret_cast<std::uintptr_t>(allocate(64))};
    return DeviceTensor{DeviceSpan(address, size_of(dtype) * 16), dtype};
  };
  const DType dtypes[] = {DType::fp32, DType::bf16, DType::fp16};
  for (const DType from : dtypes) {
    const DeviceTensor x = tensor(from);
    EXPECT_TRUE(compute->scale(stream, x, 1));
    EXPECT_TRUE(compute->square_sums(stream, x, tensor(DType::fp32).bytes.subspan(ByteCount(), 8_B)));
    for (const DType to : dtypes) {
      const DeviceTensor y = tensor(to);
      EXPECT_TRUE(compute->cast(stream, x, y));
      EXPECT_TRUE(compute->accumulate(stream, x, y));
      EXPECT_TRUE(compute->mean(stream, std::array{x}, y));
    }
  }

  EXPECT_EQ(count().of("cudaLaunchKernel"), 2 * 3 + 2 * 9 + 6u);
  EXPECT_EQ(late_loads(), 0u);
}

TEST_F(FakeCudaKernels, AreMissingInABuildForOtherDevices) {
  fail_call("cudaFuncGetAttributes", 3, cudaErrorNoKernelImageForDevice);

  const Error error = kernels::make_cuda_compute(0).error();

  EXPECT_EQ(error.code(), ErrorCode::unsupported);
  EXPECT_NE(error.message().find("CMAKE_CUDA_ARCHITECTURES"), std::string::npos) << error.message();
}

TEST_F(FakeCudaKernels, AreRefusedOnAStreamOfAnotherDevice) {
  restart({.devices = 2});
  const cudaStream_t stream = make_stream();
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  std::byte* const device = allocate(4);

  EXPECT_EQ(halve(stream, floats(device, 1), 1).error().code(), ErrorCode::invalid_argument);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "check_cuda() has read it";
}

}  // namespace
}  // namespace penstock::test::fake_cuda
