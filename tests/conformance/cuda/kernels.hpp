#pragma once

#include <cuda_runtime_api.h>

namespace penstock::test::cuda_semantics {

/// Launches a kernel of `blocks` blocks that writes `value` to `*to`. The launch's error is the thread's last error.
void launch_write(unsigned* to, unsigned value, cudaStream_t stream, unsigned blocks = 1);
/// For cudaFuncGetAttributes.
[[nodiscard]] const void* write_kernel();

/// A kernel without code for devices of compute capability 8.0 or newer.
void launch_old_kernel(cudaStream_t stream);
[[nodiscard]] const void* old_kernel();

}  // namespace penstock::test::cuda_semantics
