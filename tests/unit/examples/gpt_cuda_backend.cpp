#include "gpt/cuda_ops.hpp"
#include "gpt/device_memory.hpp"
#include "gpt_backend.hpp"

#include <cuda_runtime_api.h>

namespace gpt::test {
namespace {

std::string failure(const char* call, cudaError_t error) {
  return std::string(call) + ": " + cudaGetErrorString(error);
}

class CudaAllocator final : public DeviceAllocator {
 public:
  penstock::Result<DeviceBuffer> allocate(penstock::ByteCount size) override {
    void* bytes = nullptr;
    if (const cudaError_t error = cudaMalloc(&bytes, size.value()); error != cudaSuccess) {
      return penstock::Error(penstock::ErrorCode::budget_too_small, "cudaMalloc")
          .reason(cudaGetErrorString(error))
          .wanted(size);
    }
    const auto address = penstock::DeviceAddress(reinterpret_cast<std::uintptr_t>(bytes));
    return DeviceBuffer{.bytes = {address, size}, .owner = {bytes, [](void* memory) { cudaFree(memory); }}};
  }
};

class CudaBackend final : public Backend {
 public:
  CudaBackend() {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), cudaSuccess);
    ops_ = make_cuda_ops(penstock::ByteCount(scratch_elements * 4)).value();
  }
  ~CudaBackend() override {
    cudaStreamSynchronize(stream_);
    ops_.reset();
    cudaStreamDestroy(stream_);
  }

  Ops& ops() override { return *ops_; }
  StreamHandle stream() override { return StreamHandle::from_native(stream_); }
  DeviceAllocator& allocator() override { return allocator_; }
  void write(std::span<const std::byte> bytes, DeviceSpan to) override {
    copy(reinterpret_cast<void*>(static_cast<std::uintptr_t>(to.address())), bytes.data(), bytes.size(),
         cudaMemcpyHostToDevice);
  }
  std::vector<std::byte> read(DeviceSpan from) override {
    std::vector<std::byte> bytes(from.size().value());
    copy(bytes.data(), reinterpret_cast<const void*>(static_cast<std::uintptr_t>(from.address())),
         bytes.size(), cudaMemcpyDeviceToHost);
    return bytes;
  }

 private:
  void copy(void* to, const void* from, std::size_t size, cudaMemcpyKind kind) {
    EXPECT_EQ(cudaMemcpyAsync(to, from, size, kind, stream_), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  }

  CudaAllocator allocator_;
  cudaStream_t stream_ = nullptr;
  std::unique_ptr<Ops> ops_;
};

std::unique_ptr<Backend> make(std::string& reason) {
  int devices = 0;
  const cudaError_t error = cudaGetDeviceCount(&devices);
  if (error == cudaSuccess && devices > 0) return std::make_unique<CudaBackend>();
  reason = failure("cudaGetDeviceCount", error);
  return nullptr;
}
// cuBLASLt 13 rounds small products twice on an H100.
constexpr BackendKind kind{.name = "Cuda", .make = make, .rounds_twice = true};

const auto name_of = [](const auto& param) { return param.param.name; };
INSTANTIATE_TEST_SUITE_P(Gpu, AttentionConformance, ::testing::Values(kind), name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, LinearConformance, ::testing::Values(kind), name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, OpsConformance, ::testing::Values(kind), name_of);
INSTANTIATE_TEST_SUITE_P(Gpu, ModelConformance, ::testing::Values(kind), name_of);

}  // namespace
}  // namespace gpt::test
