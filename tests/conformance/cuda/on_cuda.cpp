#include "runtime_under_test.hpp"

#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <cstdlib>
#include <memory>

namespace penstock::test::cuda_semantics {

// In a context that is lost the function does not run, and is not destroyed.
cudaError_t enqueue(cudaStream_t stream, std::function<void()> function) {
  auto owned = std::make_unique<std::function<void()>>(std::move(function));
  const auto run = [](void* argument) {
    const std::unique_ptr<std::function<void()>> mine(static_cast<std::function<void()>*>(argument));
    (*mine)();
  };
  const cudaError_t error = cudaLaunchHostFunc(stream, run, owned.get());
  if (error == cudaSuccess) (void)owned.release();
  return error;
}

// The runtime has no function for it, and to ask it for the driver's (cudaGetDriverEntryPointByVersion) may create a
// context. It has loaded the driver, whose function creates none (Driver API, "Primary Context Management").
bool has_context(int device) {
  void* const driver = ::dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  void* const function = driver == nullptr ? nullptr : ::dlsym(driver, "cuDevicePrimaryCtxGetState");
  EXPECT_NE(function, nullptr) << "libcuda.so.1 is not loaded, or has no cuDevicePrimaryCtxGetState";
  if (function == nullptr) return false;
  unsigned flags = 0;
  int active = 0;
  const auto get_state = reinterpret_cast<decltype(&cuDevicePrimaryCtxGetState)>(function);
  EXPECT_EQ(get_state(device, &flags, &active), CUDA_SUCCESS);
  return active != 0;
}

void hide_devices() {
  EXPECT_EQ(::setenv("CUDA_VISIBLE_DEVICES", "-1", /*overwrite=*/1), 0);
}

}  // namespace penstock::test::cuda_semantics
