#include "fake_cuda/fake_cuda.hpp"
#include "runtime_under_test.hpp"

#include <algorithm>
#include <utility>

namespace penstock::test::cuda_semantics {

namespace {
const bool started = [] {
  fake_cuda::restart({.devices = 2});
  fake_cuda::add_kernels(PENSTOCK_SEMANTICS_PTX);
  return true;
}();
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
