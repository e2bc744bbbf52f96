#include "fake_cuda/fake_cuda.hpp"
#include "runtime_under_test.hpp"

#include <gtest/gtest.h>
#include <algorithm>
#include <utility>

namespace penstock::test::cuda_semantics {

namespace {

class FakeMachine : public testing::Environment {
  void SetUp() override {
    fake_cuda::restart({.devices = 2});
    fake_cuda::add_kernels(PENSTOCK_SEMANTICS_PTX);
  }
  void TearDown() override { hide_devices(); }
};
[[maybe_unused]] const testing::Environment* const machine =
    testing::AddGlobalTestEnvironment(new FakeMachine);

}  // namespace

cudaError_t enqueue(cudaStream_t stream, std::function<void()> function) {
  return fake_cuda::enqueue(stream, std::move(function));
}

bool has_context(int device) {
  return std::ranges::count(fake_cuda::contexts(), device) > 0;
}

void hide_devices() {
  fake_cuda::restart({.devices = 0});
}

}  // namespace penstock::test::cuda_semantics
