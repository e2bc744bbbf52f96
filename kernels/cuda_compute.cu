#include "kernels/cuda_compute.hpp"

#include "kernels/cuda_launch.hpp"
#include "kernels/operands.hpp"

namespace penstock::kernels {

namespace {

__device__ std::uint64_t first_index() {
  return std::uint64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}
__device__ std::uint64_t stride() {
  return std::uint64_t{gridDim.x} * blockDim.x;
}

template <class From, class To>
__global__ void cast_kernel(const From* from, To* to, std::uint64_t count) {
  for (auto i = first_index(); i < count; i += stride()) to[i] = narrow<To>(widen(from[i]));
}

template <class T>
__global__ void scale_kernel(T* x, float factor, std::uint64_t count) {
  for (auto i = first_index(); i < count; i += stride()) x[i] = narrow<T>(widen(x[i]) * factor);
}

template <class X, class Sum>
__global__ void accumulate_kernel(const X* x, Sum* sum, std::uint64_t count) {
  for (auto i = first_index(); i < count; i += stride()) sum[i] = narrow<Sum>(widen(sum[i]) + widen(x[i]));
}

struct MeanInputs {
  const void* x[mean_inputs_max];
  unsigned count;
};

template <class X, class Out>
__global__ void mean_kernel(MeanInputs inputs, Out* out, float factor, std::uint64_t count) {
  for (auto i = first_index(); i < count; i += stride()) {
    float sum = widen(static_cast<const X*>(inputs.x[0])[i]);
    for (unsigned input = 1; input < inputs.count; ++input) {
      sum = sum + widen(static_cast<const X*>(inputs.x[input])[i]);
    }
    out[i] = narrow<Out>(sum * factor);
  }
}

constexpr unsigned lane_count = 16;

/// Sixteen neighbouring threads compute the sixteen partial sums of one square-sum block. All threads of a warp run
/// the same number of iterations, because they exchange sums at the end of each.
template <class T>
__global__ void square_sums_kernel(const T* x, double* partials, std::uint64_t count, std::uint64_t blocks) {
  const unsigned lane = threadIdx.x % lane_count;
  const std::uint64_t rounded_blocks = (blocks + 1) / 2 * 2;
  for (auto block = first_index() / lane_count; block < rounded_blocks; block += stride() / lane_count) {
    const std::uint64_t first = block * Compute::square_sum_block;
    const std::uint64_t last = min(first + Compute::square_sum_block, count);
    double sum = 0.0;
    for (std::uint64_t i = first + lane; i < last; i += lane_count) {
      const double value = widen(x[i]);
      sum = sum + value * value;
    }
    for (unsigned half = lane_count / 2; half > 0; half /= 2) {
      sum = sum + __shfl_down_sync(0xffffffffu, sum, half, lane_count);
    }
    if (lane == 0 && block < blocks) partials[block] = sum;
  }
}

/// Loads every kernel of a Compute. CUDA would load each at its first launch, which then waits for the device (CUDA C++
/// Programming Guide, "Lazy Loading").
Result<void> load_kernels() {
  cudaError_t status = cudaSuccess;
  const auto load = [&status](auto* kernel) {
    cudaFuncAttributes attributes{};
    if (status == cudaSuccess) status = cudaFuncGetAttributes(&attributes, kernel);
  };
  const auto each_element = [](const auto& body) {
    for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) with_device_elements({{}, dtype}, body);
  };
  each_element([&]<class X>(X*) {
    load(scale_kernel<X>);
    load(square_sums_kernel<X>);
    each_element([&]<class Y>(Y*) {
      load(cast_kernel<X, Y>);
      load(accumulate_kernel<X, Y>);
      load(mean_kernel<X, Y>);
    });
  });
  return check_cuda("make_cuda_compute", status);
}

class CudaCompute final : public Compute {
 public:
  explicit CudaCompute(int device) : device_(device) {}

  Result<void> cast(StreamHandle stream, DeviceTensor from, DeviceTensor to) override {
    PENSTOCK_TRY(check_cast(from, to));
    const std::uint64_t count = to.count().value();
    if (from.dtype == to.dtype) return copy(stream, from.bytes, to.bytes);
    return launch_on("CudaCompute::cast", device_, count, [&](unsigned grid) {
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
    return launch_on("CudaCompute::scale", device_, count, [&](unsigned grid) {
      with_device_elements(x, [&](auto* values) {
        scale_kernel<<<grid, threads_per_block, 0, cuda_stream(stream)>>>(values, factor, count);
      });
    });
  }

  Result<void> accumulate(StreamHandle stream, DeviceTensor x, DeviceTensor sum) override {
    PENSTOCK_TRY(check_accumulate(x, sum));
    const std::uint64_t count = x.count().value();
    return launch_on("CudaCompute::accumulate", device_, count, [&](unsigned grid) {
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
    return launch_on("CudaCompute::mean", device_, count, [&](unsigned grid) {
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
    return launch_on("CudaCompute::square_sums", device_, blocks * lane_count, [&](unsigned grid) {
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
