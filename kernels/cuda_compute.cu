#include "kernels/cuda_compute.hpp"

#include "kernels/cuda_access.hpp"
#include "kernels/cuda_launch.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

namespace {

/// Groups of each operand that a thread has in flight, enough for the memory of any device; of a mean's inputs fewer,
/// because those of several inputs are in flight together.
constexpr unsigned groups = 4, mean_groups = 2;

/// The threads of a kernel that writes `count` elements.
std::uint64_t threads_for(std::uint64_t count, DType written, unsigned thread_groups = groups) {
  return ceil_divide(count, thread_groups * wide_access / size_of(written).value());
}

template <class From, class To>
__global__ void __launch_bounds__(threads_per_block, four_blocks)
    cast_kernel(const From* from, To* to, std::uint64_t count) {
  for_slots<group_of<To>, groups>(are_wide(from, to), count, [&](std::uint64_t first, const auto& slots) {
    From x[slots.count];
    To y[slots.count];
    slots.load(from + first, x);
#pragma unroll
    for (unsigned k = 0; k < slots.count; ++k) y[k] = narrow<To>(widen(x[k]));
    slots.store(y, to + first);
  });
}

template <class T>
__global__ void __launch_bounds__(threads_per_block, four_blocks)
    scale_kernel(T* values, float factor, std::uint64_t count) {
  for_slots<group_of<T>, groups>(are_wide(values), count, [&](std::uint64_t first, const auto& slots) {
    T x[slots.count];
    slots.load(values + first, x);
#pragma unroll
    for (unsigned k = 0; k < slots.count; ++k) x[k] = narrow<T>(widen(x[k]) * factor);
    slots.store(x, values + first);
  });
}

template <class X, class Sum>
__global__ void __launch_bounds__(threads_per_block, four_blocks)
    accumulate_kernel(const X* values, Sum* sums, std::uint64_t count) {
  const auto add = [&](std::uint64_t first, const auto& slots) {
    X x[slots.count];
    Sum sum[slots.count];
    slots.load(values + first, x);
    slots.load(sums + first, sum);
#pragma unroll
    for (unsigned k = 0; k < slots.count; ++k) sum[k] = narrow<Sum>(widen(sum[k]) + widen(x[k]));
    slots.store(sum, sums + first);
  };
  for_slots<group_of<Sum>, groups>(are_wide(values, sums), count, add);
}

struct MeanInputs {
  const void* x[mean_inputs_max];
  unsigned count;
};

template <class X, class Out>
__global__ void __launch_bounds__(threads_per_block, three_blocks)
    mean_kernel(MeanInputs inputs, Out* out, float factor, std::uint64_t count) {
  bool wide = are_wide(out);
  for (unsigned input = 0; input < inputs.count; ++input) wide = wide && are_wide(inputs.x[input]);
  for_slots<group_of<Out>, mean_groups>(wide, count, [&](std::uint64_t first, const auto& slots) {
    X x[slots.count];
    float sum[slots.count];
    slots.load(static_cast<const X*>(inputs.x[0]) + first, x);
#pragma unroll
    for (unsigned k = 0; k < slots.count; ++k) sum[k] = widen(x[k]);
#pragma unroll 2
    for (unsigned input = 1; input < inputs.count; ++input) {
      slots.load(static_cast<const X*>(inputs.x[input]) + first, x);
#pragma unroll
      for (unsigned k = 0; k < slots.count; ++k) sum[k] = sum[k] + widen(x[k]);
    }
    Out mean[slots.count];
#pragma unroll
    for (unsigned k = 0; k < slots.count; ++k) mean[k] = narrow<Out>(sum[k] * factor);
    slots.store(mean, out + first);
  });
}

/// The accumulators of a square-sum block. Each belongs to a thread; a warp computes two blocks.
constexpr unsigned accumulators = 16, warp_blocks = warp_threads / accumulators;

template <class T>
__device__ void add_square(T x, double& sum) {
  const double value = widen(x);
  sum = __fma_rn(value, value, sum);  // the product is exact, as the host's
}

/// What the threads of a warp read of two whole blocks and exchange, because a thread needs every 16th element.
struct StagedBlocks {
  static constexpr unsigned loads = 4;  ///< of a thread, of each block: 2 KiB of the block in all
  static constexpr unsigned pieces = loads * warp_threads,
                            padding = 4;  // which keeps the blocks in different banks
  uint4 of[warp_blocks][pieces + padding];

  /// Adds the squares of the thread's elements to `sum`. All threads of the warp call it.
  template <class T>
  __device__ void add_squares(const T* blocks, double& sum) {
    constexpr unsigned elements = pieces * group_of<T>;
    const unsigned lane = threadIdx.x % warp_threads;
    const T* const own = reinterpret_cast<const T*>(of[lane / accumulators]) + lane % accumulators;
    uint4 next[warp_blocks][loads];
    read(blocks, next);
#pragma unroll 1
    for (unsigned i = 0; i < Compute::square_sum_block; i += elements) {
      __syncwarp();  // all have used what was there
#pragma unroll
      for (unsigned block = 0; block < warp_blocks; ++block) {
#pragma unroll
        for (unsigned k = 0; k < loads; ++k) of[block][k * warp_threads + lane] = next[block][k];
      }
      __syncwarp();
      if (i + elements < Compute::square_sum_block) read(blocks + i + elements, next);
#pragma unroll 16
      for (unsigned row = 0; row < elements; row += accumulators) add_square(own[row], sum);
    }
  }

 private:
  template <class T>
  __device__ static void read(const T* blocks, uint4 (&to)[warp_blocks][loads]) {
    const unsigned lane = threadIdx.x % warp_threads;
#pragma unroll
    for (unsigned block = 0; block < warp_blocks; ++block) {
#pragma unroll
      for (unsigned k = 0; k < loads; ++k) {
        to[block][k] = *reinterpret_cast<const uint4*>(blocks + block * Compute::square_sum_block +
                                                       (k * warp_threads + lane) * group_of<T>);
      }
    }
  }
};

/// All threads of a warp run the same number of iterations, because they exchange elements and sums.
template <class T>
__global__ void __launch_bounds__(threads_per_block, three_blocks)
    square_sums_kernel(const T* x, double* partials, std::uint64_t count, std::uint64_t blocks) {
  __shared__ StagedBlocks staged[threads_per_block / warp_threads];
  const bool wide = are_wide(x);
  for (std::uint64_t first = first_warp() * warp_blocks; first < blocks; first += warps() * warp_blocks) {
    const std::uint64_t block = first + threadIdx.x % warp_threads / accumulators,
                        begin = block * Compute::square_sum_block;
    double sum = 0;
    if (wide && (first + warp_blocks) * Compute::square_sum_block <= count) {
      staged[threadIdx.x / warp_threads].add_squares(x + first * Compute::square_sum_block, sum);
    } else if (block < blocks) {
      const std::uint64_t end = min(begin + Compute::square_sum_block, count);
      for (std::uint64_t i = begin + threadIdx.x % accumulators; i < end; i += accumulators)
        add_square(x[i], sum);
    }
#pragma unroll
    for (unsigned half = accumulators / 2; half > 0; half /= 2) {
      sum = sum + __shfl_down_sync(0xffffffffu, sum, half, accumulators);
    }
    if (threadIdx.x % accumulators == 0 && block < blocks) partials[block] = sum;
  }
}

Result<void> load_kernels() {
  KernelLoader load;
  with_each_element([&]<class X>(X*) {
    load(scale_kernel<X>);
    load(square_sums_kernel<X>);
    with_each_element([&]<class Y>(Y*) {
      load(cast_kernel<X, Y>);
      load(accumulate_kernel<X, Y>);
      load(mean_kernel<X, Y>);
    });
  });
  return load.result("make_cuda_compute");
}

class CudaCompute final : public Compute {
 public:
  explicit CudaCompute(int device) : device_(device) {}

  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    PENSTOCK_TRY(check_cast(from, to));
    const std::uint64_t count = to.count().value();
    if (from.dtype == to.dtype) return copy(stream, from.bytes, to.bytes);
    return launch_on("CudaCompute::cast", device_, threads_for(count, to.dtype), [&](unsigned grid) {
      with_device_elements(from, [&](const auto* source) {
        with_device_elements(to, [&](auto* destination) {
          cast_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(source, destination, count);
        });
      });
    });
  }

  Result<void> scale(StreamHandle stream, DeviceTensor x, float factor) override {
    PENSTOCK_TRY(check_scale(x));
    const std::uint64_t count = x.count().value();
    return launch_on("CudaCompute::scale", device_, threads_for(count, x.dtype), [&](unsigned grid) {
      with_device_elements(x, [&](auto* values) {
        scale_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(values, factor, count);
      });
    });
  }

  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    PENSTOCK_TRY(check_accumulate(x, sum));
    const std::uint64_t count = x.count().value();
    return launch_on("CudaCompute::accumulate", device_, threads_for(count, sum.dtype), [&](unsigned grid) {
      with_device_elements(x, [&](const auto* values) {
        with_device_elements(sum, [&](auto* sums) {
          accumulate_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(values, sums, count);
        });
      });
    });
  }

  Result<void> mean(StreamHandle stream, std::span<const DeviceTensor> x, DeviceTensor out) override {
    PENSTOCK_TRY(check_mean(x, out));
    const std::uint64_t count = out.count().value();
    const float factor = mean_factor(x.size());
    MeanInputs inputs{};
    for (const DeviceTensor& input : x) {
      inputs.x[inputs.count++] = reinterpret_cast<const void*>(input.bytes.address());
    }
    return launch_on(
        "CudaCompute::mean", device_, threads_for(count, out.dtype, mean_groups), [&](unsigned grid) {
          with_device_elements(x[0], [&](const auto* first) {
            using Input = std::remove_const_t<std::remove_pointer_t<decltype(first)>>;
            with_device_elements(out, [&](auto* values) {
              mean_kernel<Input>
                  <<<grid, threads_per_block, 0, cuda_stream(stream)>>>(inputs, values, factor, count);
            });
          });
        });
  }

  Result<void> square_sums(StreamHandle stream, DeviceTensor x, DeviceSpan partials) override {
    PENSTOCK_TRY(check_square_sums(x, partials));
    const std::uint64_t count = x.count().value(), blocks = ceil_divide(count, square_sum_block);
    auto* sums = reinterpret_cast<double*>(partials.address());
    return launch_on("CudaCompute::square_sums", device_, blocks * accumulators, [&](unsigned grid) {
      with_device_elements(x, [&](const auto* values) {
        square_sums_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(values, sums, count, blocks);
      });
    });
  }

 private:
  Result<void> copy(StreamHandle stream, DeviceSpan from, DeviceSpan to) {
    if (to.empty()) return ok();
    PENSTOCK_TRY(use_device("CudaCompute::cast", device_));
    return check_cuda(
        "CudaCompute::cast",
        cudaMemcpyAsync(reinterpret_cast<void*>(to.address()), reinterpret_cast<const void*>(from.address()),
                        to.size().value(), cudaMemcpyDeviceToDevice, cuda_stream(stream)));
  }

  int device_;
};

}  // namespace

Result<std::unique_ptr<Compute>> make_cuda_compute(int device) {
  PENSTOCK_TRY(use_device("make_cuda_compute", device));
  PENSTOCK_TRY(load_kernels());
  return std::make_unique<CudaCompute>(device);
}

}  // namespace penstock::kernels
