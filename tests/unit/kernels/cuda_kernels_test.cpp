#include "cpu_adam/adam_coefficients.hpp"
#include "elements.hpp"
#include "kit/host_queue.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>
#include <cstring>
#include <penstock/cpu_adam/adam.hpp>
#include <utility>
#include "kernels/cuda_adam.hpp"
#include "kernels/cuda_compute.hpp"
#include "kernels/host_compute.hpp"

namespace penstock::test {
namespace {

/// Bytes on the host and a copy of them on the device.
class Twin {
 public:
  explicit Twin(std::vector<std::byte> bytes) : host_(std::move(bytes)) {
    if (host_.empty()) return;
    EXPECT_EQ(cudaMalloc(&device_, host_.size()), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(device_, host_.data(), host_.size(), cudaMemcpyHostToDevice), cudaSuccess);
  }
  Twin(const Twin&) = delete;
  Twin& operator=(const Twin&) = delete;
  ~Twin() { cudaFree(device_); }

  [[nodiscard]] HostSpan host_span() { return {host_.data(), ByteCount(host_.size())}; }
  [[nodiscard]] DeviceSpan on_host() { return span(host_.data()); }
  [[nodiscard]] DeviceSpan on_device() { return span(device_); }
  /// Waits for the device.
  [[nodiscard]] bool equal() {
    std::vector<std::byte> back(host_.size());
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(back.data(), device_, back.size(), cudaMemcpyDeviceToHost), cudaSuccess);
    return back == host_;
  }

 private:
  DeviceSpan span(void* address) const {
    return {DeviceAddress(reinterpret_cast<std::uintptr_t>(address)), ByteCount(host_.size())};
  }
  std::vector<std::byte> host_;
  void* device_ = nullptr;
};

constexpr std::uint64_t sizes[] = {0, 1, 127, 129, 4095, 4097, 16385, 100'000};

class CudaKernels : public testing::Test {
 protected:
  void SetUp() override {
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) GTEST_SKIP() << "no CUDA device here";
    cuda = kernels::make_cuda_compute(0).value();
  }

  DeferredQueue queue;
  StreamHandle host_stream = StreamHandle::of(queue), cuda_stream = StreamHandle::from_native(nullptr);
  std::unique_ptr<Compute> host = kernels::make_host_compute(), cuda;
};

TEST_F(CudaKernels, GiveTheHostsBitsForEveryOperationSizeAndDtype) {
  for (const std::uint64_t count : sizes) {
    for (const DType from : dtypes) {
      for (const DType to : dtypes) {
        Twin x(elements(count, from, 1)), y(elements(count, from, 2)), sum(elements(count, to, 3)),
            out(elements(count, to, 4)), mean(elements(count, to, 5)),
            partials(std::vector<std::byte>(8 * ceil_divide(count, Compute::square_sum_block)));
        const auto run = [&](Compute& compute, StreamHandle stream, DeviceSpan (Twin::*on)()) {
          const DeviceTensor inputs[] = {{(x.*on)(), from}, {(y.*on)(), from}, {(x.*on)(), from}};
          EXPECT_TRUE(compute.mean(stream, inputs, {(mean.*on)(), to}).has_value());
          EXPECT_TRUE(compute.square_sums(stream, inputs[0], (partials.*on)()).has_value());
          EXPECT_TRUE(compute.accumulate(stream, inputs[0], {(sum.*on)(), to}).has_value());
          EXPECT_TRUE(compute.scale(stream, {(sum.*on)(), to}, 1.0f / 3.0f).has_value());
          EXPECT_TRUE(compute.cast(stream, inputs[1], {(out.*on)(), to}).has_value());
        };
        run(*host, host_stream, &Twin::on_host);
        queue.run();
        run(*cuda, cuda_stream, &Twin::on_device);

        for (Twin* result : {&mean, &partials, &sum, &out}) {
          EXPECT_TRUE(result->equal()) << count << " " << to_string(from) << " to " << to_string(to);
        }
      }
    }
  }
}

TEST_F(CudaKernels, UpdateATileToTheBitsOfTheCpu) {
  using kernels::AdamDecay, kernels::StateFormat;
  for (const std::uint64_t count : sizes) {
    for (const auto& [mode, format] : {std::pair(AdamDecay::decoupled, StateFormat::fp32),
                                       {AdamDecay::l2, StateFormat::fp32},
                                       {AdamDecay::decoupled, StateFormat::split}}) {
      std::vector<std::byte> flags(8);
      Twin state(std::vector<std::byte>(cpu_adam::tile_bytes(format, ElementCount(count)).value().value())),
          gradient(elements(count, DType::bf16, 2)), parameter(std::vector<std::byte>(2 * count)),
          flag(flags);
      const cpu_adam::AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
      const cpu_adam::AdamTile tile{.state = state.host_span(),
                                    .gradient = gradient.host_span(),
                                    .parameter = parameter.host_span(),
                                    .elements = ElementCount(count),
                                    .format = format};
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(cpu_adam::adam_step(config, step, 0.5f, tile).has_value());
        const auto coefficients = cpu_adam::adam_coefficients(config, step, 0.5f).value();
        ASSERT_TRUE(kernels::cuda_adam_step(0, cuda_stream, coefficients,
                                            {.state = state.on_device(),
                                             .gradient = {gradient.on_device(), DType::bf16},
                                             .parameter = {parameter.on_device(), DType::bf16},
                                             .first_non_finite_block = flag.on_device(),
                                             .format = format})
                        .has_value());
      }
      std::memset(flag.host_span().data(), 0xff, 8);
      EXPECT_TRUE(state.equal() && parameter.equal() && flag.equal()) << count;
    }
  }
}

// Needs no GPU: the call fails before it enqueues anything.
TEST(CudaAdam, RefusesAStateFormatWithoutAKernelByName) {
  const auto refused = kernels::cuda_adam_step(0, {}, {}, {.format = kernels::StateFormat::split_q8});

  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::unsupported);
  EXPECT_NE(refused.error().message().find("split_q8"), std::string::npos) << refused.error().message();
}

}  // namespace
}  // namespace penstock::test
