#include "kernels.hpp"

namespace penstock::test::cuda_semantics {

namespace {
__global__ void write(unsigned* to, unsigned value) {
  *to = value;
}
}  // namespace

void launch_write(unsigned* to, unsigned value, cudaStream_t stream, unsigned blocks) {
  write<<<blocks, 1, 0, stream>>>(to, value);
}

const void* write_kernel() {
  return reinterpret_cast<const void*>(&write);
}

}  // namespace penstock::test::cuda_semantics
