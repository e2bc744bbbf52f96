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

using kernels::AdamDecay, kernels::StateFormat;

/// Formats, each with a dtype that its parameters can have.
constexpr std::pair<StateFormat, DType> formats[] = {
    {StateFormat::fp32, DType::bf16},         {StateFormat::moments, DType::fp32},
    {StateFormat::moments, DType::bf16},      {StateFormat::moments, DType::fp16},
    {StateFormat::moments_bf16, DType::bf16}, {StateFormat::split, DType::bf16},
    {StateFormat::split_bf16, DType::bf16},   {StateFormat::split_q8, DType::bf16}};

TEST_F(CudaKernels, UpdateATileToTheBitsOfTheCpu) {
  for (const auto& [format, parameter_dtype] : formats) {
    for (const std::uint64_t count : sizes) {
      const AdamDecay mode = count % 2 == 0 ? AdamDecay::decoupled : AdamDecay::l2;
      const cpu_adam::AdamConfig config{.learning_rate = 1e-2f, .weight_decay = 0.1f, .decay_mode = mode};
      std::vector<std::byte> state_bytes(cpu_adam::tile_bytes(format, ElementCount(count)).value().value()),
          parameter_bytes(size_of(parameter_dtype).value() * count),
          masters = elements(count, DType::fp32, 1);
      cpu_adam::AdamTile tile{.state = {state_bytes.data(), ByteCount(state_bytes.size())},
                              .parameter = {parameter_bytes.data(), ByteCount(parameter_bytes.size())},
                              .elements = ElementCount(count),
                              .parameter_dtype = parameter_dtype,
                              .format = format,
                              .first_element = 12345};
      const ConstHostSpan initial(masters.data(), ByteCount(masters.size()));
      ASSERT_TRUE(cpu_adam::initialize_tile(initial, DType::fp32, tile).has_value());
      Twin state(state_bytes), parameter(parameter_bytes), gradient(elements(count, DType::bf16, 2)),
          flag(std::vector<std::byte>(8));
      tile.state = state.host_span(), tile.parameter = parameter.host_span();
      tile.gradient = gradient.host_span();
      for (std::uint64_t step = 1; step <= 3; ++step) {
        ASSERT_TRUE(cpu_adam::adam_step(config, step, 0.5f, tile).has_value());
        const auto coefficients = cpu_adam::adam_coefficients(config, step, 0.5f).value();
        ASSERT_TRUE(kernels::cuda_adam_step(0, cuda_stream, coefficients,
                                            {.state = state.on_device(),
                                             .gradient = {gradient.on_device(), DType::bf16},
                                             .parameter = {parameter.on_device(), parameter_dtype},
                                             .first_non_finite_block = flag.on_device(),
                                             .format = format,
                                             .step = step,
                                             .first_element = tile.first_element})
                        .has_value());
      }
      std::memset(flag.host_span().data(), 0xff, 8);
      EXPECT_TRUE(state.equal() && parameter.equal() && flag.equal()) << to_string(format) << " " << count;
    }
  }
}

// Needs no GPU: the calls fail before they enqueue anything.
TEST(CudaAdam, RefusesWrongArgumentsByName) {
  const auto span = [](std::uint64_t address, std::uint64_t size) {
    return DeviceSpan(DeviceAddress(address), ByteCount(size));
  };
  const auto tile = [&](StateFormat format, DType parameter = DType::bf16) {
    const std::uint64_t count = 100;
    return kernels::DeviceAdamTile{
        .state = span(0x10000, cpu_adam::tile_bytes(format, ElementCount(count)).value().value()),
        .gradient = {span(0x20000, 2 * count), DType::bf16},
        .parameter = {span(0x30000, size_of(parameter).value() * count), parameter},
        .first_non_finite_block = span(0x40000, 8),
        .format = format,
        .step = 1};
  };
  const auto refused = [](const kernels::DeviceAdamTile& wrong) {
    const auto result = kernels::cuda_adam_step(0, {}, {}, wrong);
    return result.has_value() || result.error().code() != ErrorCode::invalid_argument
               ? std::string("not refused")
               : result.error().message();
  };
  const auto expect_refused = [&](const kernels::DeviceAdamTile& wrong, const char* name) {
    EXPECT_NE(refused(wrong).find(name), std::string::npos) << refused(wrong);
  };

  kernels::DeviceAdamTile wrong = tile(StateFormat::fp32);
  wrong.format = static_cast<StateFormat>(9);
  expect_refused(wrong, "format");
  for (const auto& [format, parameter] : formats) {
    SCOPED_TRACE(to_string(format));
    const std::uint64_t size = tile(format).state.size().value();
    for (const DeviceSpan state : {span(0x10000, size - 1), span(0x10000, size + 1), span(0, size),
                                   span(0x10001, size), span(0x2ff80, size), span(0x1ff80, size)}) {
      wrong = tile(format, parameter);
      wrong.state = state;
      expect_refused(wrong, "state");
    }
    wrong = tile(format, parameter);
    wrong.step = 0;
    const bool exact =
        format == StateFormat::fp32 || format == StateFormat::split || parameter == DType::fp32;
    if (!exact) expect_refused(wrong, "step");
    if (format != StateFormat::fp32 && format != StateFormat::moments)
      expect_refused(tile(format, DType::fp16), "parameter");
    wrong = tile(format, parameter);
    wrong.parameter.bytes = span(0x30000, 4);
    expect_refused(wrong, "parameter");
    for (const DeviceSpan flag : {span(0, 8), span(0x40000, 4), span(0x40004, 8), span(0x10000, 8)}) {
      wrong = tile(format, parameter);
      wrong.first_non_finite_block = flag;
      expect_refused(wrong, "first_non_finite_block");
    }
  }
}

}  // namespace
}  // namespace penstock::test
