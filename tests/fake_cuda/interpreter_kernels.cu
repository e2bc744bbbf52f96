// Kernels for tests of the interpreter, compiled with CUDA's default arithmetic.

constexpr unsigned most_threads = 64;

/// Reverses the values of a block, through its shared memory.
template <bool barrier>
__global__ void reverse_kernel(float* values) {
  __shared__ float shared[most_threads];
  shared[threadIdx.x] = values[threadIdx.x];
  if (barrier) __syncthreads();
  values[threadIdx.x] = shared[blockDim.x - 1 - threadIdx.x];
}
template __global__ void reverse_kernel<true>(float*);
template __global__ void reverse_kernel<false>(float*);

/// Some threads of a block do not reach the barrier.
__global__ void barrier_kernel(float* values, unsigned reached) {
  values[threadIdx.x] = 1;
  if (threadIdx.x < reached) __syncthreads();
  values[threadIdx.x] = 2;
}

enum class Missing { before_read, before_overwrite, between_writes, nothing };

/// All threads get the value of the first, then the last one replaces it.
template <Missing missing>
__global__ void broadcast_kernel(float* values) {
  __shared__ float shared;
  if (threadIdx.x == 0 || missing == Missing::between_writes) shared = values[0];
  if (missing != Missing::before_read) __syncthreads();
  values[threadIdx.x] = shared;
  if (missing != Missing::before_overwrite) __syncthreads();
  if (threadIdx.x == blockDim.x - 1) shared = 0;
}
template __global__ void broadcast_kernel<Missing::before_read>(float*);
template __global__ void broadcast_kernel<Missing::before_overwrite>(float*);
template __global__ void broadcast_kernel<Missing::between_writes>(float*);
template __global__ void broadcast_kernel<Missing::nothing>(float*);

/// The blocks after the first read what none of their threads has written.
__global__ void copy_kernel(float* values) {
  __shared__ float shared[most_threads];
  if (blockIdx.x == 0) shared[threadIdx.x] = values[threadIdx.x];
  __syncthreads();
  values[threadIdx.x] = shared[threadIdx.x];
}

/// Each thread copies 16 bytes, or 8, with one access.
__global__ void copy_16_kernel(const uint4* from, uint4* to) {
  to[threadIdx.x] = from[threadIdx.x];
}
__global__ void copy_8_kernel(const uint2* from, uint2* to) {
  to[threadIdx.x] = from[threadIdx.x];
}

/// All threads of a warp get its largest value.
__global__ void largest_kernel(unsigned* values, unsigned members) {
  values[threadIdx.x] = __reduce_max_sync(members, values[threadIdx.x]);
}

__global__ void exponential_kernel(const float* x, float* y) {
  y[threadIdx.x] = expf(x[threadIdx.x]);
}
__global__ void logarithm_kernel(const float* x, float* y) {
  y[threadIdx.x] = logf(x[threadIdx.x]);
}
__global__ void multiply_add_kernel(const float* x, const float* y, float* z) {
  z[threadIdx.x] = __fmaf_rn(x[threadIdx.x], y[threadIdx.x], z[threadIdx.x]);
}
__global__ void multiply_add_down_kernel(const float* x, const float* y, float* z) {
  z[threadIdx.x] = __fmaf_rd(x[threadIdx.x], y[threadIdx.x], z[threadIdx.x]);
}
