// Adds the example's kernels to those of the fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"

namespace {
[[maybe_unused]] const bool added = (penstock::test::fake_cuda::add_kernels(GPT_KERNELS_PTX), true);
}
