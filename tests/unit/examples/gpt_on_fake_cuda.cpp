// Adds the example's kernels to those of the fake CUDA runtime.
#include "fake_cuda/fake_cuda.hpp"

#include <sstream>
#include <string>

namespace {
[[maybe_unused]] const bool added = [] {
  std::istringstream files(GPT_KERNELS_PTX);
  for (std::string file; std::getline(files, file, ':');) penstock::test::fake_cuda::add_kernels(file);
  return true;
}();
}  // namespace
