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

/// Lane 30 of each warp gets what lane 29 has written, of the last warp what thread `writer` has. Then lane 31 replaces
/// what lane 29 has written.
template <Missing missing>
__global__ void warp_kernel(float* values, unsigned writer) {
  __shared__ float shared[most_threads];
  const unsigned other = threadIdx.x + 2 == blockDim.x ? writer : threadIdx.x - 1;
  shared[threadIdx.x] = values[threadIdx.x];
  if (missing != Missing::before_read) __syncwarp();
  if (threadIdx.x % 32 == 30) values[threadIdx.x] = shared[other];
  if (missing != Missing::before_overwrite) __syncwarp();
  if (threadIdx.x % 32 == 31) shared[threadIdx.x - 2] = 0;
}
template __global__ void warp_kernel<Missing::before_read>(float*, unsigned);
template __global__ void warp_kernel<Missing::before_overwrite>(float*, unsigned);
template __global__ void warp_kernel<Missing::nothing>(float*, unsigned);

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

/// Each thread's value and that of the lane whose number differs in the bits of `mask`.
__global__ void butterfly_kernel(float* values, int mask) {
  values[threadIdx.x] = __shfl_xor_sync(~0u, values[threadIdx.x], mask);
}

/// Registers of a fragment follow one another: a[thread][4], b[thread][2], sum[thread][4].
__global__ void multiply_matrices_kernel(const unsigned* a, const unsigned* b, float* sum) {
  a += 4 * threadIdx.x, b += 2 * threadIdx.x, sum += 4 * threadIdx.x;
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Registers of four matrices of 8 x 8 numbers of 16 bits, one after the other in memory: to[thread][4].
template <bool transposed>
__global__ void load_matrices_kernel(const unsigned* from, unsigned* to) {
  __shared__ alignas(16) unsigned shared[4 * 32];
  for (unsigned i = 0; i < 4; ++i) shared[4 * threadIdx.x + i] = from[4 * threadIdx.x + i];
  __syncthreads();
  const auto row = static_cast<unsigned>(__cvta_generic_to_shared(&shared[4 * threadIdx.x]));
  to += 4 * threadIdx.x;
  if (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(row));
  }
}
template __global__ void load_matrices_kernel<true>(const unsigned*, unsigned*);
template __global__ void load_matrices_kernel<false>(const unsigned*, unsigned*);
