// Adam on tiles in the memory of a device, through the C interface: the host, a GPU, or the fake CUDA runtime.
#include "c_handles.hpp"
#include "c_tile_values.hpp"

#include <penstock/penstock.h>

#if PENSTOCK_TEST_CUDA
#include <cuda_runtime_api.h>
#endif

#include <gtest/gtest.h>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <vector>

namespace penstock {
namespace {

using test::expect;
using test::made;
using test::succeed;
using DeviceAdam = test::Owned<penstock_device_adam, penstock_device_adam_free>;

#if PENSTOCK_TEST_CUDA
constexpr penstock_device device = PENSTOCK_DEVICE_CUDA;
void* allocate(std::size_t bytes) {
  void* memory = nullptr;
  EXPECT_EQ(cudaMalloc(&memory, bytes), cudaSuccess);
  return memory;
}
void release(void* memory) {
  cudaFree(memory);
}
void copy_to_device(void* to, const void* from, std::size_t bytes) {
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), cudaSuccess);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  EXPECT_EQ(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
}
#else
constexpr penstock_device device = PENSTOCK_DEVICE_HOST;
void* allocate(std::size_t bytes) {
  return new std::uint64_t[bytes / 8 + 1];
}
void release(void* memory) {
  delete[] static_cast<std::uint64_t*>(memory);
}
void copy_to_device(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
void copy_to_host(void* to, const void* from, std::size_t bytes) {
  std::memcpy(to, from, bytes);
}
#endif

/// A copy of host values on the device.
template <class T>
class OnDevice {
 public:
  explicit OnDevice(const std::vector<T>& values)
      : size_(values.size()), memory_(allocate(bytes()), release) {
    copy_to_device(memory_.get(), values.data(), bytes());
  }
  [[nodiscard]] T* get() const { return static_cast<T*>(memory_.get()); }
  [[nodiscard]] std::vector<T> values() const {
    std::vector<T> read(size_);
    copy_to_host(read.data(), memory_.get(), bytes());
    return read;
  }

 private:
  [[nodiscard]] std::size_t bytes() const { return size_ * sizeof(T); }
  std::size_t size_;
  std::unique_ptr<void, void (*)(void*)> memory_;
};

constexpr const penstock_hyperparameters& hyperparameters = test::tile_hyperparameters;

TEST(CDeviceAdam, HasTheBitsOfAnUpdateOnTheHost) {
  constexpr std::uint64_t count = 20'000;
  const std::vector<float> initial = test::tile_masters(count);
  const std::vector<std::uint16_t> gradient = test::tile_gradient(count);
  const auto adam = made<DeviceAdam>([](auto to) { return penstock_device_adam_create(device, 0, to); });
  for (std::int32_t format = PENSTOCK_STATE_FP32; format <= PENSTOCK_STATE_MOMENTS_BF16; ++format) {
    SCOPED_TRACE(format);
    std::uint64_t bytes = 0;
    succeed(penstock_tile_state_bytes(format, PENSTOCK_ADAM, count, &bytes));
    std::vector<std::uint64_t> state(bytes / 8 + 1);
    std::vector<std::uint16_t> parameter(count);
    penstock_tile tile{.size = sizeof(tile),
                       .state = state.data(),
                       .gradient = gradient.data(),
                       .parameter = parameter.data(),
                       .elements = count,
                       .gradient_dtype = PENSTOCK_BF16,
                       .parameter_dtype = PENSTOCK_BF16,
                       .format = format,
                       .first_element = 5};
    succeed(penstock_tile_initialize(&tile, initial.data(), PENSTOCK_FP32, nullptr));
    const OnDevice device_state(state);
    const OnDevice device_parameter(parameter), device_gradient(gradient);
    const OnDevice flag(std::vector<std::uint64_t>{0});
    penstock_tile on_device = tile;
    on_device.state = device_state.get();
    on_device.gradient = device_gradient.get();
    on_device.parameter = device_parameter.get();

    for (std::uint64_t step = 1; step <= 3; ++step) {
      succeed(penstock_tile_step(&tile, &hyperparameters, step, 0.5f, nullptr, nullptr));
      succeed(penstock_device_adam_step(adam.get(), nullptr, &on_device, &hyperparameters, step, 0.5f,
                                        flag.get()));
    }

    EXPECT_TRUE(device_state.values() == state);
    EXPECT_TRUE(device_parameter.values() == parameter);
    EXPECT_EQ(flag.values().front(), ~std::uint64_t{0});
  }
}

TEST(CDeviceAdam, TellsTheBlockWithAValueThatIsNotFinite) {
  constexpr std::uint64_t count = 40'000;
  std::vector<float> parameter(count, 1.0f), gradient(count, 0.5f);
  gradient[20'000] = __builtin_inff();
  std::vector<std::uint64_t> state(count);
  const OnDevice device_state(state), flag(std::vector<std::uint64_t>{0});
  const OnDevice device_parameter(parameter), device_gradient(gradient);
  const auto adam = made<DeviceAdam>([](auto to) { return penstock_device_adam_create(device, 0, to); });
  const penstock_tile tile{.size = sizeof(tile),
                           .state = device_state.get(),
                           .gradient = device_gradient.get(),
                           .parameter = device_parameter.get(),
                           .elements = count,
                           .format = PENSTOCK_STATE_MOMENTS};

  succeed(penstock_device_adam_step(adam.get(), nullptr, &tile, &hyperparameters, 1, 1, flag.get()));

  EXPECT_EQ(flag.values().front(), 1u);
}

TEST(CDeviceAdam, RefusesWhatItCannotUpdate) {
  const auto adam = made<DeviceAdam>([](auto to) { return penstock_device_adam_create(device, 0, to); });
  std::uint64_t memory[64] = {};
  penstock_tile tile{.size = sizeof(tile),
                     .state = memory,
                     .gradient = memory + 16,
                     .parameter = memory + 32,
                     .elements = 4,
                     .format = PENSTOCK_STATE_MOMENTS};
  const auto step = [&](penstock_device_adam* on, const penstock_tile* given, std::uint64_t* flag) {
    return penstock_device_adam_step(on, nullptr, given, &hyperparameters, 1, 1, flag);
  };
  expect(step(nullptr, &tile, memory + 48), PENSTOCK_INVALID_ARGUMENT, "adam");
  expect(step(adam.get(), nullptr, memory + 48), PENSTOCK_INVALID_ARGUMENT, "tile");
  expect(step(adam.get(), &tile, nullptr), PENSTOCK_INVALID_ARGUMENT, "non_finite_block");
  expect(penstock_device_adam_step(adam.get(), nullptr, &tile, nullptr, 1, 1, memory + 48),
         PENSTOCK_INVALID_ARGUMENT, "hyperparameters");
  expect(penstock_device_adam_step(adam.get(), nullptr, &tile, &hyperparameters, 0, 1, memory + 48),
         PENSTOCK_INVALID_ARGUMENT, "step");
  tile.gradient = nullptr;
  expect(step(adam.get(), &tile, memory + 48), PENSTOCK_INVALID_ARGUMENT, "tile.gradient");
  tile.gradient = memory + 16;
  tile.optimizer = PENSTOCK_LION;
  expect(step(adam.get(), &tile, memory + 48), PENSTOCK_UNSUPPORTED, "tile.optimizer");
  penstock_device_adam* none = nullptr;
  expect(penstock_device_adam_create(2, 0, &none), PENSTOCK_INVALID_ARGUMENT, "device");
  expect(penstock_device_adam_create(device, 0, nullptr), PENSTOCK_INVALID_ARGUMENT, "adam");
  penstock_device_adam_free(nullptr);
}

}  // namespace
}  // namespace penstock
